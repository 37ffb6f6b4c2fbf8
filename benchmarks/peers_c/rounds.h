/* What the programs that measure a peer have in common: ranks, a state that changes, nodes that get lost, results.
 *
 *     PROGRAM FOLDER BYTES CHECKPOINTS SEED LOSSES [what the program takes]
 *
 * Every rank is a node of its own, with the node-local folder FOLDER/node<rank>. LOSSES is "none", "one" and "two",
 * separated by commas: what is restored after. The nodes that get lost are those of benchmarks/nodes.py. Rank 0 prints
 * one JSON object on a line of its own. A restore that does not bring back every byte ends the run with an error.
 */
#ifndef ROUNDS_H
#define ROUNDS_H

#include <mpi.h>
#include <stddef.h>

typedef struct {
    int rank, ranks;
    const char *folder;      /* of all nodes */
    char node[3072];         /* this node's folder in it */
    size_t bytes;            /* of the state; a multiple of 8 */
    int checkpoints;         /* of which the last one is timed */
    unsigned long long seed; /* of the state's bytes */
    const char *losses;
    int steps;               /* training steps so far */
    unsigned char *state;
    int rest_count;          /* arguments of the program itself */
    char **rest;
} run_t;

/* Start MPI, read the arguments, make the folders and the state. */
void begin(run_t *run, int argc, char **argv);

/* Change every byte, as an optimizer does, and let all ranks meet. */
void train(run_t *run);

/* Seconds since `began` on the slowest rank. */
double slowest_since(double began);

/* Whether to restore after a loss, which then happens: the folders of the lost nodes are removed and made again, empty,
 * and the live state is overwritten. */
int lose(run_t *run, const char *loss);

/* End the run unless every byte on every rank is what the last training step made. */
void compare(run_t *run, const char *loss);

/* Fail with a message. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Collect one figure, and print all of them at the end. */
void found(run_t *run, const char *name, double seconds);
void end(run_t *run);

#endif
