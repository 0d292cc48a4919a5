/* SPDX-License-Identifier: MIT */
/*
 * Threads share all that they may share: a program of its own, without a test framework, so that ThreadSanitizer can
 * watch it (Criterion's sandbox does not start under it). Usage: race [DEVICE [engine]]: with loops on threads of the
 * engine's own. Results are compared bit by bit with those of one thread.
 */
#include <attune/attune.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, ROUNDS = 16, HEADS = 3, LENGTH = 333, DIM = 40, ELEMENTS = HEADS * LENGTH * DIM };

static float q[ELEMENTS], k[ELEMENTS], v[ELEMENTS], expected[ELEMENTS];

/* Objects that all threads use at once. */
typedef struct shared {
    attune_instance *instance;
    attune_device *device;
    attune_expr *allowed, *score;
    attune_mask *mask;
    attune_plan *plan;
    attune_buffer *q, *k, *v;
} shared;

typedef struct worker {
    pthread_t thread;
    const shared *common;
    unsigned number;
    bool good;
} worker;

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) != ATTUNE_OK)                                                                                       \
            return fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, attune_last_error()), false;                     \
    } while (0)
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition), false;                              \
    } while (0)

static bool make_mask(attune_instance *instance, const attune_expr *allowed, attune_mask **mask)
{
    static int32_t doc[LENGTH];
    const attune_mask_desc desc = {.struct_size = sizeof desc, .q_len = LENGTH, .kv_len = LENGTH};
    attune_host_capture ids = {"doc", {.data = doc, .dtype = ATTUNE_I32, .rank = 1, .size = {LENGTH}}};
    TRY(attune_mask_create(instance, &desc, allowed, &ids, 1, NULL, 0, mask));
    return true;
}

static bool make_expressions(attune_instance *instance, attune_expr **allowed, attune_expr **score)
{
    const attune_symbol doc = {"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1};
    TRY(attune_expr_create(instance, ATTUNE_EXPR_MASK, "window(100) && doc[q] == doc[kv]", &doc, 1, allowed));
    TRY(attune_expr_create(instance, ATTUNE_EXPR_SCORE, "20 * tanh(score / 20) - 0.01 * abs(q - kv)", NULL, 0, score));
    return true;
}

static bool make_buffer(attune_device *device, const float *data, attune_buffer **buffer)
{
    TRY(attune_buffer_create(device, sizeof q, buffer));
    if (data)
        TRY(attune_buffer_write(*buffer, 0, data, sizeof q));
    return true;
}

static attune_tensor tensor(attune_buffer *buffer)
{
    return (attune_tensor){.buffer = buffer, .dtype = ATTUNE_F32, .rank = 4, .size = {1, HEADS, LENGTH, DIM}};
}

/* One call with outputs of its own. */
static bool compute(const shared *s, float *o)
{
    attune_buffer *out = NULL, *workspace = NULL;
    attune_completion done;
    if (!make_buffer(s->device, NULL, &out))
        return false;
    TRY(attune_buffer_create(s->device, attune_plan_workspace_size(s->plan) + 1, &workspace));
    const attune_forward_args args = {.struct_size = sizeof args,
                                      .q = tensor(s->q),
                                      .k = tensor(s->k),
                                      .v = tensor(s->v),
                                      .o = tensor(out),
                                      .mask = s->mask,
                                      .workspace = workspace};
    TRY(attune_forward(s->plan, attune_device_queue(s->device), &args, &done));
    TRY(attune_completion_wait(done, UINT64_MAX));
    TRY(attune_buffer_read(out, 0, o, sizeof q));
    attune_buffer_destroy(out);
    attune_buffer_destroy(workspace);
    return true;
}

static bool share(const shared *s)
{
    float *o = malloc(sizeof q);
    CHECK(o);
    bool good = compute(s, o);
    CHECK(good && !memcmp(o, expected, sizeof q));
    free(o);
    return true;
}

/* Objects made from shared ones, which outlive them or not. */
static bool derive(const shared *s)
{
    attune_mask *other = NULL, *both = NULL, *slice = NULL;
    attune_mask_stats stats = {.struct_size = sizeof stats};
    attune_plan *plan = NULL;
    if (!make_mask(s->instance, s->allowed, &other))
        return false;
    TRY(attune_mask_and(s->mask, other, &both));
    const attune_mask_range range = {.struct_size = sizeof range, .q_blocks = 1};
    TRY(attune_mask_slice(both, &range, &slice));
    TRY(attune_mask_stats_get(slice, true, &stats));
    CHECK(stats.pairs > 0);
    attune_problem problem = {.struct_size = sizeof problem,
                              .dtype = ATTUNE_F32,
                              .head_dim = DIM,
                              .heads = HEADS,
                              .q_len = LENGTH,
                              .score = s->score};
    TRY(attune_problem_set_mask(&problem, both));
    TRY(attune_plan_create(s->device, &problem, NULL, &plan));
    attune_mask_destroy(other);
    attune_mask_destroy(both);
    attune_mask_destroy(slice);
    attune_plan_destroy(plan);
    return true;
}

/* Everything of one's own, an error among it: messages belong to their thread. */
static bool alone(const shared *s, unsigned number)
{
    (void)s;
    attune_instance *instance = NULL;
    attune_expr *allowed = NULL, *score = NULL, *wrong = NULL;
    attune_mask *mask = NULL;
    char text[32], message[32];
    TRY(attune_instance_create(NULL, &instance));
    if (!make_expressions(instance, &allowed, &score) || !make_mask(instance, allowed, &mask))
        return false;
    (void)snprintf(text, sizeof text, "q >= missing%u", number);
    (void)snprintf(message, sizeof message, "missing%u", number);
    CHECK(attune_expr_create(instance, ATTUNE_EXPR_MASK, text, NULL, 0, &wrong) == ATTUNE_PARSE_ERROR);
    CHECK(strstr(attune_last_error(), message));
    attune_expr_destroy(allowed);
    attune_expr_destroy(score);
    attune_mask_destroy(mask);
    attune_instance_destroy(instance);
    return true;
}

static void *work(void *user)
{
    worker *w = user;
    w->good = true;
    for (unsigned round = 0; round < ROUNDS && w->good; round++)
        w->good = share(w->common) && derive(w->common) && alone(w->common, w->number);
    return NULL;
}

/* The engine's loop: a thread for each index but the last, which is the caller's. */
typedef struct share_of_loop {
    pthread_t thread;
    void (*body)(void *context, uint32_t index);
    void *context;
    uint32_t index;
} share_of_loop;

static void *run_share(void *user)
{
    const share_of_loop *s = user;
    s->body(s->context, s->index);
    return NULL;
}

static void engine_loop(void *user, uint32_t count, void (*body)(void *context, uint32_t index), void *context)
{
    share_of_loop shares[THREADS];
    (void)user;
    for (uint32_t i = 0; i + 1 < count; i++) {
        shares[i] = (share_of_loop){.body = body, .context = context, .index = i};
        if (pthread_create(&shares[i].thread, NULL, run_share, &shares[i]))
            abort();
    }
    body(context, count - 1);
    for (uint32_t i = 0; i + 1 < count; i++)
        pthread_join(shares[i].thread, NULL);
}

static bool prepare(const char *id, bool engine, shared *s)
{
    attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = THREADS};
    if (engine)
        desc.parallel_for.run = engine_loop;
    TRY(attune_instance_create(&desc, &s->instance));
    TRY(attune_device_open(s->instance, id, &s->device));
    if (!make_expressions(s->instance, &s->allowed, &s->score) || !make_mask(s->instance, s->allowed, &s->mask))
        return false;
    TRY(attune_mask_upload(s->mask, s->device));
    attune_problem problem = {.struct_size = sizeof problem,
                              .dtype = ATTUNE_F32,
                              .head_dim = DIM,
                              .heads = HEADS,
                              .q_len = LENGTH,
                              .score = s->score};
    TRY(attune_problem_set_mask(&problem, s->mask));
    TRY(attune_plan_create(s->device, &problem, NULL, &s->plan));
    return make_buffer(s->device, q, &s->q) && make_buffer(s->device, k, &s->k) && make_buffer(s->device, v, &s->v) &&
           compute(s, expected);
}

int main(int argc, char **argv)
{
    uint64_t state = 88172645463325252u;
    for (int i = 0; i < ELEMENTS; i++) {
        float *const to[] = {q, k, v};
        for (int t = 0; t < 3; t++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            to[t][i] = (float)(int64_t)state * 0x1p-62f;
        }
    }
    shared s = {0};
    worker workers[THREADS] = {0};
    bool good = prepare(argc > 1 ? argv[1] : "cpu", argc > 2 && !strcmp(argv[2], "engine"), &s);
    unsigned started = 0;
    for (; good && started < THREADS; started++) {
        workers[started] = (worker){.common = &s, .number = started};
        if (pthread_create(&workers[started].thread, NULL, work, &workers[started]))
            break;
    }
    good = good && started == THREADS;
    for (unsigned i = 0; i < started; i++) {
        pthread_join(workers[i].thread, NULL);
        good = good && workers[i].good;
    }
    attune_buffer_destroy(s.q);
    attune_buffer_destroy(s.k);
    attune_buffer_destroy(s.v);
    attune_plan_destroy(s.plan);
    attune_mask_destroy(s.mask);
    attune_expr_destroy(s.allowed);
    attune_expr_destroy(s.score);
    attune_device_destroy(s.device);
    attune_instance_destroy(s.instance);
    return good ? 0 : 1;
}
