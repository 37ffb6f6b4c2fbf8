/* See rounds.h. */
#define _GNU_SOURCE
#include "rounds.h"

#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static char results[4096];

void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

/* The n-th eight bytes of a rank's state before any training: splitmix64, which does not compress. */
static uint64_t word(const run_t *run, size_t n)
{
    uint64_t z = (run->seed * 1000003u + (uint64_t)run->rank) * 0x9e3779b97f4a7c15u * 2654435761u
                 + (n + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void begin(run_t *run, int argc, char **argv)
{
    int provided;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* never outlive the launcher */
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    memset(run, 0, sizeof(*run));
    MPI_Comm_rank(MPI_COMM_WORLD, &run->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &run->ranks);
    if (argc < 6 || provided != MPI_THREAD_MULTIPLE || run->ranks < 4)
        fail("%s FOLDER BYTES CHECKPOINTS SEED LOSSES ..., on four ranks, with MPI_THREAD_MULTIPLE", argv[0]);
    run->folder = argv[1];
    run->bytes = strtoull(argv[2], NULL, 10) / 8 * 8;
    run->checkpoints = atoi(argv[3]);
    run->seed = strtoull(argv[4], NULL, 10);
    run->losses = argv[5];
    run->rest_count = argc - 6;
    run->rest = argv + 6;
    snprintf(run->node, sizeof(run->node), "%s/node%d", run->folder, run->rank);
    mkdir(run->node, 0755);
    if (posix_memalign((void **)&run->state, 2 << 20, run->bytes) != 0)
        fail("no memory for a state of %zu bytes", run->bytes);
    uint64_t *words = (uint64_t *)run->state;
    for (size_t n = 0; n < run->bytes / 8; n++)
        words[n] = word(run, n);
    MPI_Barrier(MPI_COMM_WORLD);
}

void train(run_t *run)
{
    run->steps++;
    for (size_t n = 0; n < run->bytes; n++)
        run->state[n]++;
    MPI_Barrier(MPI_COMM_WORLD);
}

double slowest_since(double began)
{
    double mine = MPI_Wtime() - began, slowest;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where)
{
    (void)status, (void)kind, (void)where;
    return remove(path);
}

int lose(run_t *run, const char *loss)
{
    char padded[64], wanted[64];
    snprintf(padded, sizeof(padded), ",%s,", run->losses);
    snprintf(wanted, sizeof(wanted), ",%s,", loss);
    if (strstr(padded, wanted) == NULL)
        return 0;
    int lost = (strcmp(loss, "one") == 0 && run->rank == 2)
               || (strcmp(loss, "two") == 0 && (run->rank == 1 || run->rank == 3));
    memset(run->state, 0, run->bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    if (lost && (nftw(run->node, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0 || mkdir(run->node, 0755) != 0))
        fail("cannot lose %s", run->node);
    MPI_Barrier(MPI_COMM_WORLD);
    return 1;
}

void compare(run_t *run, const char *loss)
{
    int wrong = 0;
    for (size_t n = 0; n < run->bytes / 8 && !wrong; n++) {
        uint64_t expected = word(run, n), got;
        unsigned char *bytes = (unsigned char *)&expected;
        for (int at = 0; at < 8; at++)
            bytes[at] += (unsigned char)run->steps;
        memcpy(&got, run->state + 8 * n, 8);
        wrong = got != expected;
    }
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (wrong)
        fail("after the loss of %s: the restored bytes are not those saved", loss);
}

void found(run_t *run, const char *name, double seconds)
{
    (void)run;
    size_t used = strlen(results);
    snprintf(results + used, sizeof(results) - used, "%s\"%s\": %.6f", used ? ", " : "", name, seconds);
}

void end(run_t *run)
{
    if (run->rank == 0) {
        printf("\n{%s}\n", results);
        fflush(stdout);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    exit(0); /* not _exit: MPICH says goodbye to its launcher in a handler of exit */
}
