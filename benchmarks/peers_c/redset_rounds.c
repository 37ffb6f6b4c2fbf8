/* redset: the program writes a file, redset adds copies or parity to it, in the foreground.
 *
 * What the program takes: "partner", "xor" or "rs" (2 of 4 nodes may be lost), and may: bytes of the buffers that are
 * exchanged and encoded, 1 MiB by default. The state goes to two files in turn, each written over, which saves tmpfs
 * from finding memory; redset writes its own files anew.
 */
#define _GNU_SOURCE
#define REDSET_ENABLE_MPI
#include "rounds.h"

#include <fcntl.h>
#include <kvtree.h>
#include <kvtree_util.h>
#include <redset.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void file_of(const run_t *run, int step, char *path, size_t length)
{
    snprintf(path, length, "%s/state%d", run->node, step % 2);
}

static void prefix_of(const run_t *run, int step, char *path, size_t length)
{
    snprintf(path, length, "%s/step%d.", run->node, step);
}

static void write_state(const run_t *run, const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT, 0644);
    for (size_t at = 0; at < run->bytes;) {
        ssize_t count = file < 0 ? -1 : write(file, run->state + at, run->bytes - at);
        if (count <= 0)
            fail("cannot write %s", path);
        at += (size_t)count;
    }
    if (fsync(file) != 0 || close(file) != 0)
        fail("cannot write %s", path);
}

static void read_state(const run_t *run, const char *path)
{
    int file = open(path, O_RDONLY);
    for (size_t at = 0; at < run->bytes;) {
        ssize_t count = file < 0 ? -1 : read(file, run->state + at, run->bytes - at);
        if (count <= 0)
            fail("cannot read %s", path);
        at += (size_t)count;
    }
    close(file);
}

static redset create(const char *scheme, const char *node)
{
    redset set;
    int result = -1;
    if (strcmp(scheme, "partner") == 0)
        result = redset_create_partner(MPI_COMM_WORLD, node, 4, 1, &set);
    if (strcmp(scheme, "xor") == 0)
        result = redset_create_xor(MPI_COMM_WORLD, node, 4, &set);
    if (strcmp(scheme, "rs") == 0)
        result = redset_create_rs(MPI_COMM_WORLD, node, 4, 2, &set);
    if (result != REDSET_SUCCESS)
        fail("redset cannot create %s", scheme);
    return set;
}

int main(int argc, char **argv)
{
    static const char *losses[] = {"none", "one", "two"};
    run_t run;
    char path[4096], prefix[4096], name[32];
    begin(&run, argc, argv);
    if (run.rest_count < 1)
        fail("redset_rounds takes partner, xor or rs, and may take bytes");
    redset_init();
    if (run.rest_count > 1) {
        kvtree *settings = kvtree_new();
        kvtree_util_set_str(settings, REDSET_KEY_CONFIG_MPI_BUF_SIZE, run.rest[1]);
        if (redset_config(settings) == NULL)
            fail("redset does not take %s", run.rest[1]);
        kvtree_delete(&settings);
    }
    redset set = create(run.rest[0], run.node);
    double seconds = 0;
    for (int step = 1; step <= run.checkpoints; step++) {
        train(&run);
        file_of(&run, step, path, sizeof(path));
        prefix_of(&run, step, prefix, sizeof(prefix));
        const char *files[] = {path};
        double began = MPI_Wtime();
        write_state(&run, path);
        if (redset_apply(1, files, prefix, set) != REDSET_SUCCESS)
            fail("redset_apply failed");
        seconds = slowest_since(began);
        if (step > 1) { /* not timed, though somebody has to */
            prefix_of(&run, step - 1, prefix, sizeof(prefix));
            redset_unapply(prefix, set);
        }
    }
    redset_delete(&set);
    found(&run, "blocked_s", seconds);
    found(&run, "complete_s", seconds);
    prefix_of(&run, run.checkpoints, prefix, sizeof(prefix));
    for (int n = 0; n < 3; n++) {
        if (!lose(&run, losses[n]))
            continue;
        double began = MPI_Wtime();
        if (redset_recover(MPI_COMM_WORLD, prefix, &set) != REDSET_SUCCESS)
            fail("redset_recover failed, %s lost", losses[n]);
        read_state(&run, path);
        seconds = slowest_since(began);
        compare(&run, losses[n]);
        redset_delete(&set);
        snprintf(name, sizeof(name), "%s_lost_s", losses[n]);
        found(&run, name, seconds);
    }
    redset_finalize();
    end(&run);
}
