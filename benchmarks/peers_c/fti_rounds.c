/* FTI: level 1 local, 2 partner copies, 3 Reed-Solomon (2 of 4 nodes may be lost), 4 parallel file system; MD5 always.
 *
 * What the program takes: a level, and may: KiB of the blocks that are exchanged and encoded, 1024 by default. FTI restores when it is started, so LOSSES is one word here: "save", or what is lost
 * before this start. The time of a restore is that of FTI_Init and FTI_Recover. All of FTI's work is done by the ranks
 * themselves: its dedicated processes ("heads") look for messages without a pause, and would take a core each.
 */
#define _GNU_SOURCE
#include "rounds.h"

#include <fti.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_configuration(const run_t *run, const char *path, int block_kib)
{
    FILE *file = fopen(path, "w");
    if (file == NULL)
        fail("cannot write %s", path);
    fprintf(file, "[Basic]\nHead = 0\nNode_size = 1\nGroup_size = 4\nCkpt_dir = %s\n", run->folder);
    fprintf(file, "Glbl_dir = %s/global\nMeta_dir = %s/meta\n", run->folder, run->folder);
    fprintf(file, "Ckpt_L1 = 0\nCkpt_L2 = 0\nCkpt_L3 = 0\nCkpt_L4 = 0\nInline_L2 = 1\nInline_L3 = 1\nInline_L4 = 1\n");
    fprintf(file, "keep_last_ckpt = 0\nmax_sync_intv = 0\nckpt_io = 1\nVerbosity = 3\n");
    fprintf(file, "[Restart]\nFailure = 0\nExec_ID = XXXX-XX-XX_XX-XX-XX\n");
    fprintf(file, "[Advanced]\nBlock_size = %d\nTransfer_size = 16\nmpi_tag = 2612\nLocal_test = 1\n", block_kib);
    fclose(file);
}

static void start(run_t *run, const char *configuration)
{
    int result = FTI_Init(configuration, MPI_COMM_WORLD);
    if (result != FTI_SCES)
        fail("FTI_Init: %d", result);
    if (FTI_Protect(0, run->state, (int32_t)(run->bytes / 8), FTI_DBLE) != FTI_SCES)
        fail("FTI_Protect failed");
}

int main(int argc, char **argv)
{
    run_t run;
    char path[4096], name[64];
    begin(&run, argc, argv);
    if (run.rest_count < 1)
        fail("fti_rounds takes a level, and may take KiB");
    snprintf(path, sizeof(path), "%s/fti.cfg", run.folder);
    if (strcmp(run.losses, "save") == 0) {
        if (run.rank == 0)
            write_configuration(&run, path, run.rest_count > 1 ? atoi(run.rest[1]) : 1024);
        MPI_Barrier(MPI_COMM_WORLD);
        start(&run, path);
        double seconds = 0;
        for (int step = 1; step <= run.checkpoints; step++) {
            train(&run);
            double began = MPI_Wtime();
            if (FTI_Checkpoint(step, atoi(run.rest[0])) != FTI_DONE)
                fail("FTI_Checkpoint failed");
            seconds = slowest_since(began);
        }
        found(&run, "blocked_s", seconds);
        found(&run, "complete_s", seconds);
    } else {
        run.steps = run.checkpoints;
        lose(&run, run.losses);
        double began = MPI_Wtime();
        start(&run, path);
        if (FTI_Status() == 0 || FTI_Recover() != FTI_SCES)
            fail("FTI_Recover failed, %s lost", run.losses);
        double seconds = slowest_since(began);
        compare(&run, run.losses);
        snprintf(name, sizeof(name), "%s_lost_s", run.losses);
        found(&run, name, seconds);
    }
    end(&run); /* without FTI_Finalize, which removes what was saved: the job was killed */
}
