/*
 * storm SECONDS: threads that call everything with each other's batches, while
 * engines come and go under them. It ends well if nothing crashes or hangs.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tideway.h"

enum { THREADS = 8, BATCHES = 64, N = 2 << 20 };

static tent_engine_t engine;
static tent_segment_id_t peer;
static uint64_t batches[BATCHES];
static char *mine, *theirs;
static int stop;

static unsigned draw(unsigned *seed)
{
    *seed = *seed * 1103515245 + 12345;
    return *seed >> 8;
}

static void submit(tent_engine_t e, uint64_t id, unsigned *seed)
{
    tent_request_t r[4];
    memset(r, 0, sizeof r);
    for (int i = 0; i < 4; i++) {
        r[i].opcode = draw(seed) % 2;
        r[i].source = mine + draw(seed) % (N / 2);
        r[i].target_id = draw(seed) % 9 ? __atomic_load_n(&peer, __ATOMIC_SEQ_CST) : draw(seed);
        r[i].target_offset = (uint64_t)theirs + draw(seed) % N; /* some of it beyond the end */
        r[i].length = 1 + draw(seed) % 200000;
        r[i].priority = draw(seed) % 3;
    }
    if (draw(seed) % 3)
        tent_submit(e, id, r, 4);
    else
        tent_submit_notif(e, id, r, 4, "name", "message");
}

static void look(tent_engine_t e, uint64_t id, unsigned *seed)
{
    tent_status_t list[20];
    struct transfer_status s;
    size_t count = draw(seed) % 20;
    tent_notifi_info got;
    tent_overall_status(e, id, list);
    tent_task_status(e, id, draw(seed) % 20, list);
    tent_task_status_list(e, id, list, &count);
    getTransferStatus(e, id, draw(seed) % 20, &s);
    tideway_batch_status(e, id, &s);
    tideway_free(tideway_task_error(e, id, draw(seed) % 20));
    if (tent_recv_notifs(e, &got) == 0)
        tent_free_notifs(&got);
}

static void *work(void *arg)
{
    unsigned seed = (unsigned)(size_t)arg;
    while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
        tent_engine_t e = __atomic_load_n(&engine, __ATOMIC_SEQ_CST);
        uint64_t *place = &batches[draw(&seed) % BATCHES], id = __atomic_load_n(place, __ATOMIC_SEQ_CST);
        switch (draw(&seed) % 8) {
        case 0:
            tent_free_batch(e, __atomic_exchange_n(place, tent_allocate_batch(e, 16), __ATOMIC_SEQ_CST));
            break;
        case 1:
            freeBatchID(e, __atomic_exchange_n(place, 0, __ATOMIC_SEQ_CST));
            break;
        case 2:
            tideway_wait_batch(e, id, draw(&seed) % 2 ? 0 : 1000000);
            break;
        case 3:
            tent_cancel_task(e, id, draw(&seed) % 18);
            break;
        case 4:
            tideway_cancel_batch(e, id);
            break;
        case 5:
            look(e, id, &seed);
            break;
        default:
            submit(e, id, &seed);
        }
    }
    return NULL;
}

/* next puts a new engine in the place of the old one, which it ends. */
static void next(const char *name)
{
    tent_segment_id_t id = 0;
    tent_engine_t e = tent_create_engine();
    if (!e || tent_register_memory(e, mine, N) || tent_open_segment(e, &id, name)) {
        fprintf(stderr, "%s\n", tideway_last_error());
        exit(1);
    }
    __atomic_store_n(&peer, id, __ATOMIC_SEQ_CST);
    tent_destroy_engine(__atomic_exchange_n(&engine, e, __ATOMIC_SEQ_CST));
}

int main(int argc, char **argv)
{
    char name[128];
    pthread_t threads[THREADS];
    mine = malloc(N);
    theirs = malloc(N);
    tent_set_config("rpc_server_hostname", "127.0.0.1");
    tent_set_config("log_level", "error");
    tent_engine_t target = tent_create_engine();
    if (argc < 2 || !target || tent_register_memory(target, theirs, N) || tent_segment_name(target, name, sizeof name)) {
        fprintf(stderr, "%s\n", tideway_last_error());
        return 1;
    }
    next(name);
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    for (int i = 0; i < 4 * atoi(argv[1]); i++) {
        tent_notifi_info got;
        usleep(250000);
        next(name);
        if (tent_recv_notifs(target, &got) == 0)
            tent_free_notifs(&got);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    tent_destroy_engine(engine);
    tent_destroy_engine(target);
    free(mine);
    free(theirs);
    puts("ok");
    return 0;
}
