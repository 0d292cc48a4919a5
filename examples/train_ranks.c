/* SPDX-License-Identifier: MIT */
/*
 * Context-parallel training over the processes of MPI (docs/distributed.md): forward, backward and an optimiser's step.
 *
 *     mpicc train_ranks.c $(pkg-config --cflags --libs attune) -lm -o train_ranks && mpirun -n 4 ./train_ranks
 *
 * One attention layer learns a target: its projections, and the slopes of its ALiBi bias, which are a capture of the
 * score expression. Each rank has some positions of one packed sequence of documents, and every parameter. Gradients
 * of the projections are sums over positions, which the engine adds up over the ranks; those of the slopes attune
 * has added up. Each rank then repeats all steps alone, on the whole sequence: the exit status is 1 if losses or
 * parameters differ.
 */
#include <attune/mpi.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    LENGTH = 700,
    DOCUMENTS = 5,
    WIDTH = 24,
    HEADS = 4,
    KV_HEADS = 2,
    HEAD_DIM = 16,
    Q_WIDTH = HEADS * HEAD_DIM,
    KV_WIDTH = KV_HEADS * HEAD_DIM,
    STEPS = 12
};

static const float rate = 2.0f;

/* The parameters; their gradients have the same layout. */
typedef struct weights {
    float q[WIDTH * Q_WIDTH], k[WIDTH * KV_WIDTH], v[WIDTH * KV_WIDTH], out[Q_WIDTH * WIDTH];
    float slope[HEADS];
} weights;

enum { PARAMETERS = sizeof(weights) / sizeof(float), SLOPE = PARAMETERS - HEADS };

/* The devices' part: attention of some positions, over ranks or alone. */
typedef struct attention {
    attune_queue *queue;
    attune_distributed *forward, *backward; /* NULL = alone */
    attune_plan *forward_plan, *backward_plan;
    const attune_mask *mask; /* alone */
    attune_buffer *workspace, *slope, *d_slope;
} attention;

/* Positions of the sequence, and what a step computes of them. Row i of a tensor is that of positions[i]. */
typedef struct state {
    int64_t rows;
    int64_t *positions;
    float *x, *target, *y, *d_y;                        /* [rows, WIDTH] */
    float *q, *k, *v, *o, *lse, *d_q, *d_k, *d_v, *d_o; /* [rows, heads, HEAD_DIM]; lse [HEADS, rows] */
    attune_tensor t_q, t_k, t_v, t_o, t_lse, t_d_q, t_d_k, t_d_v, t_d_o;
} state;

static void check(attune_status status)
{
    if (status == ATTUNE_OK)
        return;
    fprintf(stderr, "%s: %s\n", attune_status_string(status), attune_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The same numbers on every rank, from -1 to 1. */
static float number(int tensor, int64_t row, int64_t column)
{
    uint64_t x = (uint64_t)tensor << 56 ^ (uint64_t)row << 24 ^ (uint64_t)column;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (float)(int32_t)(x >> 32) * 0x1p-31f;
}

static int32_t document_of(int64_t position)
{
    return (int32_t)(position * position * DOCUMENTS / LENGTH / LENGTH);
}

/* ------------------------------------------------------------------------------------------------------------ state */

/* Nothing for a rank without positions. */
static float *zeros(int64_t count)
{
    float *data = calloc((size_t)count, sizeof *data);
    if (count && !data)
        MPI_Abort(MPI_COMM_WORLD, 1);
    return data;
}

/* [1, heads, rows, HEAD_DIM] in memory [rows, heads, HEAD_DIM]; columns 0: lse, [1, heads, rows]. */
static float *make(attune_device *device, int64_t rows, int64_t heads, int64_t columns, attune_tensor *t)
{
    const int64_t elements = rows * heads * (columns ? columns : 1);
    *t = (attune_tensor){.dtype = ATTUNE_F32, .rank = columns ? 4 : 3, .size = {1, heads, rows, columns}};
    if (columns) {
        const int64_t stride[4] = {elements, columns, heads * columns, 1};
        for (int i = 0; i < 4; i++)
            t->stride[i] = stride[i];
    }
    float *data = zeros(elements);
    if (elements)
        check(attune_buffer_wrap(device, data, (uint64_t)elements * sizeof *data, &t->buffer));
    return data;
}

static state make_state(attune_device *device, const attune_run *runs, uint32_t count)
{
    state s = {0};
    for (uint32_t i = 0; i < count; i++)
        s.rows += runs[i].count;
    s.positions = calloc((size_t)s.rows + 1, sizeof *s.positions);
    s.x = zeros(s.rows * WIDTH);
    s.y = zeros(s.rows * WIDTH);
    s.d_y = zeros(s.rows * WIDTH);
    s.target = zeros(s.rows * WIDTH);
    if (!s.positions)
        MPI_Abort(MPI_COMM_WORLD, 1);
    int64_t row = 0;
    for (uint32_t i = 0; i < count; i++)
        for (int64_t p = runs[i].start; p < runs[i].start + runs[i].count; p++, row++) {
            s.positions[row] = p;
            for (int64_t c = 0; c < WIDTH; c++) {
                s.x[row * WIDTH + c] = number(1, p, c);
                /* The element of the position before, if it is of the same document. */
                s.target[row * WIDTH + c] = p && document_of(p) == document_of(p - 1) ? number(1, p - 1, c) : 0;
            }
        }
    s.q = make(device, s.rows, HEADS, HEAD_DIM, &s.t_q);
    s.k = make(device, s.rows, KV_HEADS, HEAD_DIM, &s.t_k);
    s.v = make(device, s.rows, KV_HEADS, HEAD_DIM, &s.t_v);
    s.o = make(device, s.rows, HEADS, HEAD_DIM, &s.t_o);
    s.lse = make(device, s.rows, HEADS, 0, &s.t_lse);
    s.d_q = make(device, s.rows, HEADS, HEAD_DIM, &s.t_d_q);
    s.d_k = make(device, s.rows, KV_HEADS, HEAD_DIM, &s.t_d_k);
    s.d_v = make(device, s.rows, KV_HEADS, HEAD_DIM, &s.t_d_v);
    s.d_o = make(device, s.rows, HEADS, HEAD_DIM, &s.t_d_o);
    return s;
}

static void release_state(state *s)
{
    const attune_tensor *tensors[] = {&s->t_q,   &s->t_k,   &s->t_v,   &s->t_o,  &s->t_lse,
                                      &s->t_d_q, &s->t_d_k, &s->t_d_v, &s->t_d_o};
    float *arrays[] = {s->x, s->target, s->y, s->d_y, s->q, s->k, s->v, s->o, s->lse, s->d_q, s->d_k, s->d_v, s->d_o};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        attune_buffer_destroy(tensors[i]->buffer);
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        free(arrays[i]);
    free(s->positions);
}

/* ---------------------------------------------------------------------------------------------------- linear algebra
 */

/* y [rows, n] = x [rows, m] w [m, n] */
static void project(const float *x, const float *w, int64_t rows, int m, int n, float *y)
{
    for (int64_t r = 0; r < rows; r++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int i = 0; i < m; i++)
                sum += (double)x[r * m + i] * (double)w[i * n + j];
            y[r * n + j] = (float)sum;
        }
}

/* d_x [rows, m] = d_y [rows, n] w^T */
static void project_back(const float *d_y, const float *w, int64_t rows, int m, int n, float *d_x)
{
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < m; i++) {
            double sum = 0;
            for (int j = 0; j < n; j++)
                sum += (double)d_y[r * n + j] * (double)w[i * n + j];
            d_x[r * m + i] = (float)sum;
        }
}

/* d_w [m, n] = x^T d_y: of these rows alone. */
static void project_weights(const float *x, const float *d_y, int64_t rows, int m, int n, float *d_w)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t r = 0; r < rows; r++)
                sum += (double)x[r * m + i] * (double)d_y[r * n + j];
            d_w[i * n + j] = (float)sum;
        }
}

/* ------------------------------------------------------------------------------------------------------------ steps */

static attune_tensor slopes(attune_buffer *buffer)
{
    return (attune_tensor){.buffer = buffer, .dtype = ATTUNE_F32, .rank = 1, .size = {HEADS}};
}

static void attend(const attention *a, const state *s)
{
    const attune_capture slope = {"slope", slopes(a->slope)};
    const attune_forward_args args = {.struct_size = sizeof args,
                                      .q = s->t_q,
                                      .k = s->t_k,
                                      .v = s->t_v,
                                      .o = s->t_o,
                                      .lse = s->t_lse,
                                      .mask = a->mask,
                                      .captures = &slope,
                                      .capture_count = 1,
                                      .workspace = a->workspace};
    check(a->forward ? attune_distributed_forward(a->forward, a->queue, &args, NULL)
                     : attune_forward(a->forward_plan, a->queue, &args, NULL));
}

static void attend_back(const attention *a, const state *s)
{
    const attune_capture slope = {"slope", slopes(a->slope)}, d_slope = {"slope", slopes(a->d_slope)};
    const attune_backward_args args = {.struct_size = sizeof args,
                                       .q = s->t_q,
                                       .k = s->t_k,
                                       .v = s->t_v,
                                       .o = s->t_o,
                                       .lse = s->t_lse,
                                       .d_o = s->t_d_o,
                                       .d_q = s->t_d_q,
                                       .d_k = s->t_d_k,
                                       .d_v = s->t_d_v,
                                       .mask = a->mask,
                                       .captures = &slope,
                                       .capture_count = 1,
                                       .capture_gradients = &d_slope,
                                       .capture_gradient_count = 1,
                                       .workspace = a->workspace};
    check(a->backward ? attune_distributed_backward(a->backward, a->queue, &args, NULL)
                      : attune_backward(a->backward_plan, a->queue, &args, NULL));
}

/* Returns the loss before the step: half the mean square of what is apart from the target. */
static double step(const attention *a, state *s, weights *w)
{
    static weights gradients, sums;
    const double share = 1.0 / (LENGTH * WIDTH);
    const float none[HEADS] = {0};
    double loss = 0, all = 0;
    project(s->x, w->q, s->rows, WIDTH, Q_WIDTH, s->q);
    project(s->x, w->k, s->rows, WIDTH, KV_WIDTH, s->k);
    project(s->x, w->v, s->rows, WIDTH, KV_WIDTH, s->v);
    check(attune_buffer_write(a->slope, 0, w->slope, sizeof w->slope));
    attend(a, s);
    project(s->o, w->out, s->rows, Q_WIDTH, WIDTH, s->y);
    for (int64_t i = 0; i < s->rows * WIDTH; i++) {
        const double apart = (double)s->y[i] - (double)s->target[i];
        loss += apart * apart / 2 * share;
        s->d_y[i] = (float)(apart * share);
    }
    project_back(s->d_y, w->out, s->rows, Q_WIDTH, WIDTH, s->d_o);
    check(attune_buffer_write(a->d_slope, 0, none, sizeof none));
    attend_back(a, s);
    project_weights(s->x, s->d_q, s->rows, WIDTH, Q_WIDTH, gradients.q);
    project_weights(s->x, s->d_k, s->rows, WIDTH, KV_WIDTH, gradients.k);
    project_weights(s->x, s->d_v, s->rows, WIDTH, KV_WIDTH, gradients.v);
    project_weights(s->o, s->d_y, s->rows, Q_WIDTH, WIDTH, gradients.out);
    sums = gradients;
    all = loss;
    if (a->forward) {
        /* All but the slopes: attune has summed those over the ranks. */
        MPI_Allreduce(&gradients, &sums, SLOPE, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        MPI_Allreduce(&loss, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    check(attune_buffer_read(a->d_slope, 0, sums.slope, sizeof sums.slope));
    float *parameters = (float *)w;
    const float *gradient = (const float *)&sums;
    for (int i = 0; i < PARAMETERS; i++)
        parameters[i] -= rate * gradient[i];
    return all;
}

static void begin_weights(weights *w)
{
    float *parameters = (float *)w;
    for (int i = 0; i < SLOPE; i++)
        parameters[i] = 0.5f * number(2, i, 0);
    for (int h = 0; h < HEADS; h++)
        w->slope[h] = 0.125f * (float)(h + 1);
}

static void train(const attention *a, state *s, weights *w, double losses[STEPS])
{
    begin_weights(w);
    for (int i = 0; i < STEPS; i++)
        losses[i] = step(a, s, w);
}

/* ------------------------------------------------------------------------------------------------------------- main */

static void make_buffers(attune_device *device, uint64_t forward, uint64_t backward, attention *a)
{
    const uint64_t size = forward > backward ? forward : backward;
    a->queue = attune_device_queue(device);
    if (size)
        check(attune_buffer_create(device, size, &a->workspace));
    check(attune_buffer_create(device, HEADS * sizeof(float), &a->slope));
    check(attune_buffer_create(device, HEADS * sizeof(float), &a->d_slope));
}

static void release_attention(attention *a)
{
    attune_buffer_destroy(a->workspace);
    attune_buffer_destroy(a->slope);
    attune_buffer_destroy(a->d_slope);
    attune_distributed_destroy(a->forward);
    attune_distributed_destroy(a->backward);
    attune_plan_destroy(a->forward_plan);
    attune_plan_destroy(a->backward_plan);
}

static double larger(double a, double b)
{
    return b <= a ? a : b; /* NaN counts */
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    attune_mpi mpi;
    attune_transport transport;
    check(attune_mpi_transport(MPI_COMM_WORLD, 77, &mpi, &transport));
    attune_instance *instance;
    attune_device *device;
    const attune_instance_desc instance_desc = {.struct_size = sizeof instance_desc, .cpu_threads = 1};
    check(attune_instance_create(&instance_desc, &instance));
    check(attune_device_open(instance, "cpu", &device));

    /* The mask of the whole sequence, in small blocks: the sequence is short. */
    int32_t document[LENGTH];
    for (int i = 0; i < LENGTH; i++)
        document[i] = document_of(i);
    const attune_host_capture documents = {"doc", {document, ATTUNE_I32, 1, {LENGTH}, {1}}};
    const attune_symbol of_mask = {"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1};
    const attune_symbol of_score = {"slope", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1};
    attune_expr *allowed, *score;
    check(attune_expr_create(instance, ATTUNE_EXPR_MASK, "q >= kv && doc[q] == doc[kv]", &of_mask, 1, &allowed));
    check(attune_expr_create(instance, ATTUNE_EXPR_SCORE, "score + slope[h] * (kv - q)", &of_score, 1, &score));
    const attune_mask_desc mask_desc = {.struct_size = sizeof mask_desc,
                                        .q_block = 32,
                                        .kv_block = 32,
                                        .heads = HEADS,
                                        .kv_heads = KV_HEADS,
                                        .q_len = LENGTH,
                                        .kv_len = LENGTH};
    attune_mask *mask;
    check(attune_mask_create(instance, &mask_desc, allowed, &documents, 1, NULL, 0, &mask));
    check(attune_mask_upload(mask, device));

    /* Over the ranks. */
    attune_partition *partition;
    const attune_partition_desc dealt = {.struct_size = sizeof dealt, .ranks = transport.size};
    check(attune_partition_create(instance, &dealt, mask, &partition));
    attune_problem problem = {.struct_size = sizeof problem,
                              .head_dim = HEAD_DIM,
                              .heads = HEADS,
                              .kv_heads = KV_HEADS,
                              .q_len = LENGTH,
                              .score = score,
                              .lse = true};
    const attune_distributed_desc desc = {.struct_size = sizeof desc,
                                          .transport = &transport,
                                          .partition = partition,
                                          .mask = mask,
                                          .problem = &problem,
                                          .token_major = true};
    attention ranks = {.forward = NULL}, alone = {.mask = mask};
    check(attune_distributed_create(device, &desc, &ranks.forward));
    problem.direction = ATTUNE_BACKWARD;
    problem.capture_gradient_elements = HEADS;
    check(attune_distributed_create(device, &desc, &ranks.backward));
    make_buffers(device, attune_distributed_workspace_size(ranks.forward),
                 attune_distributed_workspace_size(ranks.backward), &ranks);
    const attune_run *runs;
    uint32_t count;
    check(attune_partition_runs(partition, transport.rank, ATTUNE_RUN_ROWS, &runs, &count));
    state mine = make_state(device, runs, count);
    static weights w, w_alone;
    double losses[STEPS], losses_alone[STEPS];
    train(&ranks, &mine, &w, losses);

    /* All positions, on this rank alone. */
    const attune_run whole = {0, LENGTH, 0};
    state all = make_state(device, &whole, 1);
    check(attune_problem_set_mask(&problem, mask));
    check(attune_plan_create(device, &problem, NULL, &alone.backward_plan));
    problem.direction = ATTUNE_FORWARD;
    problem.capture_gradient_elements = 0;
    check(attune_plan_create(device, &problem, NULL, &alone.forward_plan));
    make_buffers(device, attune_plan_workspace_size(alone.forward_plan),
                 attune_plan_workspace_size(alone.backward_plan), &alone);
    train(&alone, &all, &w_alone, losses_alone);

    double apart[2] = {0}, most[2] = {0};
    for (int i = 0; i < STEPS; i++)
        apart[0] = larger(apart[0], fabs(losses[i] - losses_alone[i]) / losses_alone[i]);
    for (int i = 0; i < PARAMETERS; i++)
        apart[1] = larger(apart[1], fabs((double)((const float *)&w)[i] - (double)((const float *)&w_alone)[i]));
    MPI_Allreduce(apart, most, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    const bool learns = losses[STEPS - 1] < 0.9 * losses[0];
    if (!transport.rank)
        printf("%u ranks: loss %.4f to %.4f in %d steps; of one device's, losses differ by %.1e and parameters by "
               "%.1e\n",
               transport.size, losses[0], losses[STEPS - 1], STEPS, most[0], most[1]);

    release_state(&mine);
    release_state(&all);
    release_attention(&ranks);
    release_attention(&alone);
    attune_partition_destroy(partition);
    attune_mask_destroy(mask);
    attune_expr_destroy(allowed);
    attune_expr_destroy(score);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
    attune_mpi_finish(&mpi);
    MPI_Finalize();
    return learns && most[0] < 1e-5 && most[1] < 1e-4 ? 0 : 1;
}
