/* A thousand engines one after the other leave no descriptor, thread or memory. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tideway.h"

static int entries(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static long resident(void) /* KiB */
{
    long kib = -1;
    char line[256];
    FILE *f = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, f))
        sscanf(line, "VmRSS: %ld", &kib);
    fclose(f);
    return kib;
}

static void cycle(char *memory)
{
    transfer_engine_t e = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
    if (!e || registerLocalMemory(e, memory, 1 << 16, "*", 1)) {
        fprintf(stderr, "%s\n", tideway_last_error());
        exit(1);
    }
    batch_id_t b = allocateBatchID(e, 4);
    struct transfer_request r = {OPCODE_WRITE, memory, LOCAL_SEGMENT, (uint64_t)memory + 4096, 4096};
    if (submitTransfer(e, b, &r, 1) || tideway_wait_batch(e, b, -1))
        exit(2);
    destroyTransferEngine(e);
}

int main(int argc, char **argv)
{
    int times = argc > 1 ? atoi(argv[1]) : 1000;
    char *memory = malloc(1 << 16);
    for (int i = 0; i < times / 2; i++)
        cycle(memory);
    int files = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    long kib = resident();
    for (int i = 0; i < times / 2; i++)
        cycle(memory);
    int more = entries("/proc/self/fd") - files, born = entries("/proc/self/task") - threads;
    long grown = resident() - kib;
    printf("descriptors %+d, threads %+d, memory %+ld KiB of %ld\n", more, born, grown, kib);
    free(memory);
    /* Threads and memory move a little with the scheduler and the collector. */
    return more > 0 || born > 4 || grown > 8192;
}
