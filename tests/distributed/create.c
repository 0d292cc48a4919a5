/* SPDX-License-Identifier: MIT */
/* Preparation of calls over several ranks, which are threads: mistakes of one rank that all are told, and allocations
 * that fail. */
#include <attune/threads.h>
#include <criterion/criterion.h>
#include <string.h>

#include "distributed/ranks.h"
#include "support/heap.h"

enum { RANKS = 3, LENGTH = 96, BLOCK = 16 };

/* The argument of rank 1 that is bad. */
typedef enum mistake {
    NONE,
    NO_DEVICE,
    NO_RESULT,
    BYTE_COST,
    LEND_WITHOUT_FINISH,
    NO_PROBLEM,
    OTHER_RANKS, /* of the partition */
} mistake;

typedef struct group {
    attune_threads threads;
    attune_instance *instance;
    attune_mask *mask;      /* of the objects, and ... */
    attune_mask *partition; /* ... of the partition */
    bool decodes;
    mistake of_one;
    attune_status status[RANKS];
    char message[RANKS][256];
    bool left[RANKS]; /* an object beside the error */
} group;

static attune_status lend(void *user, const attune_message *sends, uint32_t send_count, attune_message *receives,
                          uint32_t receive_count, attune_queue *queue)
{
    (void)user, (void)sends, (void)send_count, (void)receives, (void)receive_count, (void)queue;
    return ATTUNE_UNAVAILABLE;
}

static attune_status create(const group *g, attune_device *device, const attune_transport *transport,
                            const attune_problem *problem, mistake wrong, bool *left)
{
    const bool has_result = wrong != NO_RESULT;
    attune_status status;
    if (g->decodes) {
        const attune_decode_desc desc = {.struct_size = sizeof desc, .transport = transport, .problem = problem};
        attune_decode *made = NULL;
        status = attune_decode_create(device, &desc, has_result ? &made : NULL);
        *left = status != ATTUNE_OK && made;
        attune_decode_destroy(made);
        return status;
    }
    const attune_partition_desc dealt = {
        .struct_size = sizeof dealt, .ranks = RANKS + (wrong == OTHER_RANKS), .layout = ATTUNE_LAYOUT_CONTIGUOUS};
    attune_partition *partition;
    attune_distributed *made = NULL;
    status = attune_partition_create(g->instance, &dealt, g->partition, &partition);
    if (status != ATTUNE_OK)
        return status;
    const attune_distributed_desc desc = {.struct_size = sizeof desc,
                                          .transport = transport,
                                          .partition = partition,
                                          .mask = g->mask,
                                          .problem = problem};
    status = attune_distributed_create(device, &desc, has_result ? &made : NULL);
    *left = status != ATTUNE_OK && made;
    attune_distributed_destroy(made);
    attune_partition_destroy(partition);
    return status;
}

typedef struct member {
    group *g;
    uint32_t rank;
} member;

static void *run_member(void *argument)
{
    const member *m = argument;
    group *g = m->g;
    const mistake wrong = m->rank == 1 ? g->of_one : NONE;
    const attune_problem problem = {
        .struct_size = sizeof problem, .head_dim = 16, .q_len = g->decodes ? 1 : 0, .kv_len = g->decodes ? LENGTH : 0};
    attune_transport transport;
    attune_device *device;
    attune_threads_transport(&g->threads, m->rank, &transport);
    if (wrong == BYTE_COST)
        transport.byte_cost = -1;
    if (wrong == LEND_WITHOUT_FINISH) {
        transport.lend = lend;
        transport.finish = NULL;
    }
    attune_status status = attune_device_open(g->instance, "cpu", &device);
    if (status == ATTUNE_OK) {
        status = create(g, wrong == NO_DEVICE ? NULL : device, &transport, wrong == NO_PROBLEM ? NULL : &problem, wrong,
                        &g->left[m->rank]);
        strncpy(g->message[m->rank], status == ATTUNE_OK ? "" : attune_last_error(), sizeof g->message[m->rank] - 1);
        attune_device_destroy(device);
    }
    g->status[m->rank] = status;
    return NULL;
}

static void run(group *g)
{
    pthread_t threads[RANKS];
    member members[RANKS];
    for (uint32_t r = 0; r < RANKS; r++) {
        members[r] = (member){g, r};
        cr_assert_eq(pthread_create(&threads[r], NULL, run_member, &members[r]), 0);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
}

static attune_mask *make_mask(attune_instance *instance, const char *text)
{
    const attune_mask_desc desc = {
        .struct_size = sizeof desc, .q_block = BLOCK, .kv_block = BLOCK, .q_len = LENGTH, .kv_len = LENGTH};
    attune_expr *expr;
    attune_mask *mask;
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, text, NULL, 0, &expr), ATTUNE_OK);
    cr_assert_eq(attune_mask_create(instance, &desc, expr, NULL, 0, NULL, 0, &mask), ATTUNE_OK);
    attune_expr_destroy(expr);
    return mask;
}

/* Every rank returns an error, none waits for one that has not come, and the transport serves the next objects. */
Test(distributed_create, a_mistake_of_one_rank, .timeout = 60)
{
    static const struct {
        mistake of_one;
        const char *word;
    } rows[] = {
        {NO_DEVICE, "device is NULL"},        {NO_RESULT, " is NULL"},
        {BYTE_COST, "byte_cost is -1"},       {LEND_WITHOUT_FINISH, "lend is set"},
        {NO_PROBLEM, "desc.problem is NULL"}, {OTHER_RANKS, "desc.partition is of 4 ranks, desc.transport of 3: make"},
    };
    enum { COUNT = sizeof rows / sizeof *rows };
    static group g;
    cr_assert_eq(attune_instance_create(NULL, &g.instance), ATTUNE_OK);
    cr_assert_eq(attune_threads_init(&g.threads, RANKS), ATTUNE_OK);
    g.mask = g.partition = make_mask(g.instance, "q >= kv");
    for (int decodes = 0; decodes < 2; decodes++) {
        g.decodes = decodes;
        /* The last is of a partition, which decode has not. */
        for (size_t i = 0; i < COUNT - (size_t)decodes; i++) {
            g.of_one = rows[i].of_one;
            run(&g);
            cr_expect(strstr(g.message[1], rows[i].word), "%s", g.message[1]);
            for (uint32_t r = 0; r < RANKS; r++) {
                cr_expect_eq(g.status[r], ATTUNE_INVALID_ARGUMENT, "mistake %zu, rank %u: %s", i, r, g.message[r]);
                cr_expect(r == 1 || strstr(g.message[r], "rank 1 failed"), "mistake %zu: %s", i, g.message[r]);
                cr_expect_not(g.left[r]);
            }
        }
        g.of_one = NONE;
        run(&g);
        for (uint32_t r = 0; r < RANKS; r++)
            cr_expect_eq(g.status[r], ATTUNE_OK, "%s", g.message[r]);
    }
    attune_mask_destroy(g.mask);
    attune_threads_finish(&g.threads);
    attune_instance_destroy(g.instance);
}

/* A mask whose rows need keys that the partition does not bring to them is refused; one that needs fewer is not. */
Test(distributed_create, mask_of_another_partition, .timeout = 60)
{
    static const struct {
        const char *mask, *partition;
        bool good;
    } rows[] = {
        {"q >= kv", "q >= kv && q - kv < 8", false},
        {"q >= kv && q - kv < 8", "q >= kv", true},
        {"q >= kv || q == 95 && kv == 95", "q >= kv", true},
        {"q >= kv || q == 0 && kv == 95", "q >= kv", false},
    };
    static group g;
    cr_assert_eq(attune_instance_create(NULL, &g.instance), ATTUNE_OK);
    cr_assert_eq(attune_threads_init(&g.threads, RANKS), ATTUNE_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t named = 0;
        g.mask = make_mask(g.instance, rows[i].mask);
        g.partition = make_mask(g.instance, rows[i].partition);
        run(&g);
        for (uint32_t r = 0; r < RANKS; r++) {
            cr_expect_eq(g.status[r], rows[i].good ? ATTUNE_OK : ATTUNE_INVALID_ARGUMENT, "row %zu, rank %u: %s", i, r,
                         g.message[r]);
            named += strstr(g.message[r], "pass the mask that it was made of") != NULL;
        }
        cr_expect_eq(named > 0, !rows[i].good);
        attune_mask_destroy(g.mask);
        attune_mask_destroy(g.partition);
    }
    attune_threads_finish(&g.threads);
    attune_instance_destroy(g.instance);
}

/* ------------------------------------------------------------------------------------------------ one rank of two */

/* Leaves a message. */
static attune_status no_gather(void *user, const void *mine, void *all, size_t size)
{
    (void)user, (void)mine, (void)all, (void)size;
    (void)attune_buffer_read(NULL, 0, NULL, 1);
    return ATTUNE_IO;
}

static attune_status no_finish(void *user, attune_queue *queue)
{
    (void)user, (void)queue;
    return ATTUNE_OK;
}

static void no_reclaim(void *user)
{
    (void)user;
}

static attune_status create_decode(attune_instance *instance, const attune_transport *transport, heap *memory,
                                   long long at)
{
    attune_problem problem = {
        .struct_size = sizeof problem, .heads = 4, .kv_heads = 2, .head_dim = 16, .q_len = 2, .kv_len = 700};
    attune_decode_desc desc = {
        .struct_size = sizeof desc, .transport = transport, .problem = &problem, .split = ATTUNE_QUERIES_BY_HEAD};
    attune_device *device;
    attune_expr *score;
    attune_decode *decode;
    cr_assert_eq(attune_device_open(instance, "cpu", &device), ATTUNE_OK);
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_SCORE, "score + q - kv", NULL, 0, &score), ATTUNE_OK);
    problem.score = score;
    if (memory)
        memory->fail_at = memory->allocations + at;
    const attune_status status = attune_decode_create(device, &desc, &decode);
    if (memory)
        memory->fail_at = 0;
    cr_expect_eq(status == ATTUNE_OK, decode != NULL);
    attune_decode_destroy(decode);
    attune_expr_destroy(score);
    attune_device_destroy(device);
    return status;
}

/* Every allocation of decode's preparation fails once: an error, and nothing is lost. */
Test(distributed_create, decode_out_of_memory)
{
    for (int lends = 0; lends < 2; lends++)
        for (long long at = 1;; at++) {
            heap memory = {0};
            lone_rank lone = {.size = 2};
            const attune_instance_desc desc = {
                .struct_size = sizeof desc, .cpu_threads = 1, .allocator = heap_allocator(&memory)};
            attune_transport transport = lone_transport(&lone);
            transport.finish = no_finish;
            transport.lend = lends ? lend : NULL;
            transport.reclaim = lends ? no_reclaim : NULL;
            attune_instance *instance;
            cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK);
            const attune_status status = create_decode(instance, &transport, &memory, at);
            attune_instance_destroy(instance);
            cr_expect_eq(memory.live, 0, "allocation %lld: %lld live", at, (long long)memory.live);
            if (status == ATTUNE_OK) {
                cr_assert(at > 10 && !lone.aborts);
                break;
            }
            cr_assert(status == ATTUNE_OUT_OF_HOST_MEMORY || status == ATTUNE_OUT_OF_DEVICE_MEMORY, "%s",
                      attune_last_error());
        }
}

/* The message has that of gather, as with the other callbacks. */
Test(distributed_create, gather_fails)
{
    lone_rank lone = {.size = 2};
    attune_instance *instance;
    attune_transport transport = lone_transport(&lone);
    transport.gather = no_gather;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    cr_expect_eq(create_decode(instance, &transport, NULL, 0), ATTUNE_IO);
    cr_expect(strstr(attune_last_error(), "transport.gather failed on rank 0") &&
                  strstr(attune_last_error(), "buffer is NULL"),
              "%s", attune_last_error());
    cr_expect_eq(lone.aborts, 1);
    attune_instance_destroy(instance);
}
