/* VELOC: writes the memory to a node-local file; adds XOR parity, and a copy on the parallel file system.
 *
 * What the program takes: lines of VELOC's configuration file, as key=value, beside scratch, meta and persistent=FOLDER,
 * which stands for a folder that all nodes see. VELOC takes the ranks of one host for a node. Here every rank is one, so
 * this program answers for the host where VELOC asks which ranks share one, and, for its sockets, for its name.
 */
#define _GNU_SOURCE
#include "rounds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <veloc.h>

/* VELOC's libraries ask for the host's name when they are loaded, before main; MPI does later, and gets the right one. */
static int loading = 1;

static const char *rank_by_launcher(void)
{
    static const char *names[] = {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"};
    for (size_t n = 0; n < sizeof(names) / sizeof(*names); n++)
        if (getenv(names[n]) != NULL)
            return getenv(names[n]);
    return "0";
}

static void name_of_node(char *name, size_t length)
{
    snprintf(name, length, "bench-%d-node%s", (int)getppid(), rank_by_launcher());
}

int gethostname(char *name, size_t length)
{
    struct utsname host;
    if (loading) {
        name_of_node(name, length);
    } else {
        if (uname(&host) != 0)
            return -1;
        snprintf(name, length, "%s", host.nodename);
    }
    return 0;
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *new_comm)
{
    int rank;
    if (type != MPI_COMM_TYPE_SHARED)
        return PMPI_Comm_split_type(comm, type, key, info, new_comm);
    MPI_Comm_rank(comm, &rank);
    return PMPI_Comm_split(comm, rank, key, new_comm);
}

static void write_configuration(const run_t *run, const char *path)
{
    FILE *file = fopen(path, "w");
    if (file == NULL)
        fail("cannot write %s", path);
    fprintf(file, "scratch = %s\nscratch_versions = 1\nmax_versions = 1\n", run->node);
    fprintf(file, "meta = %s/meta\nlog_prefix = %s/log%d\n", run->folder, run->folder, run->rank);
    for (int n = 0; n < run->rest_count; n++) {
        char *value = strchr(run->rest[n], '=');
        if (value == NULL)
            fail("%s is no key=value", run->rest[n]);
        int shared = strcmp(run->rest[n], "persistent=FOLDER") == 0;
        fprintf(file, "%.*s = ", (int)(value - run->rest[n]), run->rest[n]);
        fprintf(file, shared ? "%s/persistent\n" : "%s\n", shared ? run->folder : value + 1);
    }
    fclose(file);
}

int main(int argc, char **argv)
{
    static const char *losses[] = {"none", "one", "two"};
    run_t run;
    char path[4096], name[128];
    loading = 0;
    begin(&run, argc, argv);
    snprintf(path, sizeof(path), "%s/log%d", run.folder, run.rank);
    mkdir(path, 0755);
    snprintf(path, sizeof(path), "%s/veloc%d.cfg", run.folder, run.rank);
    write_configuration(&run, path);
    if (VELOC_Init(MPI_COMM_WORLD, path) != VELOC_SUCCESS)
        fail("VELOC_Init failed");
    VELOC_Mem_protect(0, run.state, run.bytes, 1);
    double blocked_s = 0, complete_s = 0;
    for (int step = 1; step <= run.checkpoints; step++) {
        train(&run);
        double began = MPI_Wtime();
        if (VELOC_Checkpoint_begin("state", step) != VELOC_SUCCESS || VELOC_Checkpoint_mem() != VELOC_SUCCESS
            || VELOC_Checkpoint_end(1) != VELOC_SUCCESS)
            fail("VELOC_Checkpoint failed");
        double mine = MPI_Wtime() - began;
        if (VELOC_Checkpoint_wait() != VELOC_SUCCESS)
            fail("VELOC_Checkpoint_wait failed");
        complete_s = slowest_since(began);
        MPI_Allreduce(&mine, &blocked_s, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    }
    found(&run, "blocked_s", blocked_s);
    found(&run, "complete_s", complete_s);
    for (int n = 0; n < 3; n++) {
        if (!lose(&run, losses[n]))
            continue;
        double began = MPI_Wtime();
        if (VELOC_Restart("state", run.checkpoints) != VELOC_SUCCESS)
            fail("VELOC_Restart failed, %s lost", losses[n]);
        double seconds = slowest_since(began);
        compare(&run, losses[n]);
        snprintf(name, sizeof(name), "%s_lost_s", losses[n]);
        found(&run, name, seconds);
    }
    VELOC_Finalize(0);
    char node[64];
    name_of_node(node, sizeof(node));
    snprintf(path, sizeof(path), "/dev/shm/veloc-socket-%s-%d", node, (int)getuid());
    unlink(path); /* which VELOC leaves there */
    end(&run);
}
