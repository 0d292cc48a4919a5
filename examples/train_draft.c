/* SPDX-License-Identifier: MIT */
/*
 * Trains a block-parallel draft model, as in DFlash (arXiv 2602.06036), on the bytes of a text: one transformer block
 * in plain C, with attention by attune.
 *
 *     cc -O2 train_draft.c $(pkg-config --cflags --libs attune) -lm && ./a.out --device cpu TEXT
 *
 * A step takes a stretch of text and random positions in it, the anchors. After each the draft predicts a block of
 * bytes at once: it is given the byte at the anchor and attends to the text before it. Queries are the bytes of the
 * blocks; keys are two segments, the text and the blocks, in separate tensors. The mask is built in each step.
 */
#include <attune/attune.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call)                                                                                                      \
    if ((call) != ATTUNE_OK)                                                                                           \
    return fprintf(stderr, "%s\n", attune_last_error()), false

enum {
    TEXT = 192,             /* bytes of context */
    BLOCK = 8,              /* bytes of a block; the first is given */
    BLOCKS = 24,            /* anchors of a step */
    DRAFT = BLOCKS * BLOCK, /* queries */
    ROWS = TEXT + DRAFT,    /* keys */
    HEADS = 4,
    HEAD = 16,
    WIDTH = HEADS * HEAD,
    HIDDEN = 2 * WIDTH,
    UNKNOWN = 256, /* the input for a byte that is to be predicted */
    SYMBOLS = 257
};

static const float decay = 0.8f; /* factor of the loss weight from one byte of a block to the next */
static const float rate = 3e-3f; /* Adam's */

/* The parameters; their gradients and Adam's two moments have the same layout. */
typedef struct weights {
    float embed[SYMBOLS * WIDTH], place[(TEXT + BLOCK) * WIDTH];
    float norm1[WIDTH], q[WIDTH * WIDTH], k[WIDTH * WIDTH], v[WIDTH * WIDTH], o[WIDTH * WIDTH];
    float norm2[WIDTH], up[HIDDEN * WIDTH], down[WIDTH * HIDDEN];
    float norm3[WIDTH], out[SYMBOLS * WIDTH];
} weights;

enum { WEIGHTS = sizeof(weights) / sizeof(float) };
static weights w, d, first, second;

/* The activations of a step; d_ of the same name is the gradient. Rows 0 to TEXT - 1 are the text, the others the
 * blocks. */
static float x[ROWS * WIDTH], n1[ROWS * WIDTH], q[DRAFT * WIDTH], k[ROWS * WIDTH], v[ROWS * WIDTH], a[DRAFT * WIDTH];
static float y[DRAFT * WIDTH], n2[DRAFT * WIDTH], u[DRAFT * HIDDEN], s[DRAFT * HIDDEN], z[DRAFT * WIDTH];
static float n3[DRAFT * WIDTH], p[DRAFT * SYMBOLS];
static float d_x[ROWS * WIDTH], d_n1[ROWS * WIDTH], d_q[DRAFT * WIDTH], d_k[ROWS * WIDTH], d_v[ROWS * WIDTH];
static float d_a[DRAFT * WIDTH], d_y[DRAFT * WIDTH], d_n2[DRAFT * WIDTH], d_u[DRAFT * HIDDEN], d_s[DRAFT * HIDDEN];
static float d_z[DRAFT * WIDTH], d_n3[DRAFT * WIDTH];
static int symbol[ROWS], place[ROWS], wanted[DRAFT]; /* wanted -1: not predicted */
static int32_t anchor[BLOCKS];

/* ----------------------------------------------------------------------------------------------------------- layers */

/* to[r] = m from[r], with m of `outputs` rows; and its gradients, which are accumulated. */
static void linear(float *to, const float *from, const float *m, int rows, int outputs, int inputs)
{
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < outputs; i++) {
            float sum = 0;
            for (int j = 0; j < inputs; j++)
                sum += m[i * inputs + j] * from[r * inputs + j];
            to[r * outputs + i] = sum;
        }
}

static void linear_backward(const float *d_to, float *d_from, float *d_m, const float *from, const float *m, int rows,
                            int outputs, int inputs)
{
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < outputs; i++) {
            const float g = d_to[r * outputs + i];
            for (int j = 0; j < inputs && g != 0; j++) {
                d_from[r * inputs + j] += g * m[i * inputs + j];
                d_m[i * inputs + j] += g * from[r * inputs + j];
            }
        }
}

static float inverse_size(const float *row)
{
    float squares = 1e-5f;
    for (int j = 0; j < WIDTH; j++)
        squares += row[j] * row[j] / WIDTH;
    return 1 / sqrtf(squares);
}

static void rms_norm(float *to, const float *from, const float *gain, int rows)
{
    for (int r = 0; r < rows; r++, to += WIDTH, from += WIDTH) {
        const float scale = inverse_size(from);
        for (int j = 0; j < WIDTH; j++)
            to[j] = gain[j] * scale * from[j];
    }
}

static void rms_norm_backward(const float *d_to, float *d_from, float *d_gain, const float *from, const float *gain,
                              int rows)
{
    for (int r = 0; r < rows; r++, d_to += WIDTH, d_from += WIDTH, from += WIDTH) {
        const float scale = inverse_size(from);
        float dot = 0;
        for (int j = 0; j < WIDTH; j++) {
            dot += d_to[j] * gain[j] * from[j];
            d_gain[j] += d_to[j] * scale * from[j];
        }
        for (int j = 0; j < WIDTH; j++)
            d_from[j] += scale * (d_to[j] * gain[j] - from[j] * scale * scale * dot / WIDTH);
    }
}

/* -------------------------------------------------------------------------------------------------------- attention */

enum { Q, K, V, O, LSE, D_O, D_Q, D_K, D_V, WORK_FORWARD, WORK_BACKWARD, BUFFERS };

typedef struct attention {
    attune_instance *instance;
    attune_device *device;
    attune_expr *allowed;
    attune_mask *masks[2]; /* of the text and of the blocks */
    attune_plan *forward, *backward;
    attune_buffer *buffers[BUFFERS];
} attention;

/* Rows [begin, begin + count) of a matrix of WIDTH columns, as heads. */
static attune_tensor view(const attention *t, int buffer, int begin, int count)
{
    return (attune_tensor){.buffer = t->buffers[buffer],
                           .offset = (uint64_t)begin * WIDTH * sizeof(float),
                           .dtype = ATTUNE_F32,
                           .rank = 4,
                           .size = {1, HEADS, count, HEAD},
                           .stride = {(int64_t)count * WIDTH, HEAD, WIDTH, 1}};
}

/* A query attends to the text before the block's anchor, and to the block: one mask for each segment, from one
 * expression. */
static bool build_masks(attention *t)
{
    static const int begin[2] = {0, TEXT}, length[2] = {TEXT, DRAFT};
    const attune_host_capture captures[] = {
        {"anchor", {.data = anchor, .dtype = ATTUNE_I32, .rank = 1, .size = {BLOCKS}}}};
    const attune_parameter parameters[] = {{"text", TEXT}, {"block", BLOCK}};
    for (int i = 0; i < 2; i++) {
        const attune_mask_desc desc = {
            .struct_size = sizeof desc, .q_len = DRAFT, .kv_len = length[i], .kv_start = begin[i], .kv_total = ROWS};
        attune_mask_destroy(t->masks[i]);
        TRY(attune_mask_create(t->instance, &desc, t->allowed, captures, 1, parameters, 2, &t->masks[i]));
        TRY(attune_mask_upload(t->masks[i], t->device));
    }
    return true;
}

static bool attention_create(attention *t, const char *device, bool deterministic)
{
    static const int rows[] = {[Q] = DRAFT,   [K] = ROWS,    [V] = ROWS,   [O] = DRAFT, [LSE] = DRAFT,
                               [D_O] = DRAFT, [D_Q] = DRAFT, [D_K] = ROWS, [D_V] = ROWS};
    const attune_symbol symbols[] = {{"anchor", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1},
                                     {"text", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0},
                                     {"block", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0}};
    TRY(attune_instance_create(NULL, &t->instance));
    TRY(attune_device_open(t->instance, device, &t->device));
    TRY(attune_expr_create(t->instance, ATTUNE_EXPR_MASK,
                           "kv < text ? kv < anchor[q / block] : (kv - text) / block == q / block", symbols, 3,
                           &t->allowed));
    if (!build_masks(t))
        return false;
    attune_problem problem = {.struct_size = sizeof problem,
                              .head_dim = HEAD,
                              .heads = HEADS,
                              .q_len = DRAFT,
                              .kv_len = TEXT > DRAFT ? TEXT : DRAFT,
                              .segments = 2};
    TRY(attune_problem_set_mask(&problem, t->masks[0]));
    TRY(attune_plan_create(t->device, &problem, NULL, &t->forward));
    problem.direction = ATTUNE_BACKWARD;
    const attune_kernel_options options = {.struct_size = sizeof options,
                                           .bwd.deterministic = deterministic ? ATTUNE_ON : ATTUNE_AUTO};
    TRY(attune_plan_create(t->device, &problem, &options, &t->backward));
    for (int i = 0; i < WORK_FORWARD; i++)
        TRY(attune_buffer_create(t->device, (uint64_t)rows[i] * WIDTH * sizeof(float), &t->buffers[i]));
    TRY(attune_buffer_create(t->device, attune_plan_workspace_size(t->forward), &t->buffers[WORK_FORWARD]));
    TRY(attune_buffer_create(t->device, attune_plan_workspace_size(t->backward), &t->buffers[WORK_BACKWARD]));
    return true;
}

static void attention_destroy(attention *t)
{
    for (int i = 0; i < BUFFERS; i++)
        attune_buffer_destroy(t->buffers[i]);
    attune_plan_destroy(t->forward);
    attune_plan_destroy(t->backward);
    attune_mask_destroy(t->masks[0]);
    attune_mask_destroy(t->masks[1]);
    attune_expr_destroy(t->allowed);
    attune_device_destroy(t->device);
    attune_instance_destroy(t->instance);
}

static void cut(const attention *t, attune_segment segments[2])
{
    segments[0] = (attune_segment){view(t, K, 0, TEXT), view(t, V, 0, TEXT), t->masks[0], view(t, D_K, 0, TEXT),
                                   view(t, D_V, 0, TEXT)};
    segments[1] = (attune_segment){view(t, K, TEXT, DRAFT), view(t, V, TEXT, DRAFT), t->masks[1],
                                   view(t, D_K, TEXT, DRAFT), view(t, D_V, TEXT, DRAFT)};
}

static attune_tensor lse_of(const attention *t)
{
    return (attune_tensor){.buffer = t->buffers[LSE], .dtype = ATTUNE_F32, .rank = 3, .size = {1, HEADS, DRAFT}};
}

static bool attend(attention *t)
{
    attune_segment segments[2];
    cut(t, segments);
    TRY(attune_buffer_write(t->buffers[Q], 0, q, sizeof q));
    TRY(attune_buffer_write(t->buffers[K], 0, k, sizeof k));
    TRY(attune_buffer_write(t->buffers[V], 0, v, sizeof v));
    const attune_forward_args args = {.struct_size = sizeof args,
                                      .q = view(t, Q, 0, DRAFT),
                                      .o = view(t, O, 0, DRAFT),
                                      .lse = lse_of(t),
                                      .workspace = t->buffers[WORK_FORWARD],
                                      .segments = segments,
                                      .segment_count = 2};
    attune_completion done;
    TRY(attune_forward(t->forward, attune_device_queue(t->device), &args, &done));
    TRY(attune_completion_wait(done, UINT64_MAX));
    TRY(attune_buffer_read(t->buffers[O], 0, a, sizeof a));
    return true;
}

static bool attend_backward(attention *t)
{
    attune_segment segments[2];
    cut(t, segments);
    TRY(attune_buffer_write(t->buffers[D_O], 0, d_a, sizeof d_a));
    const attune_backward_args args = {.struct_size = sizeof args,
                                       .q = view(t, Q, 0, DRAFT),
                                       .o = view(t, O, 0, DRAFT),
                                       .lse = lse_of(t),
                                       .d_o = view(t, D_O, 0, DRAFT),
                                       .d_q = view(t, D_Q, 0, DRAFT),
                                       .workspace = t->buffers[WORK_BACKWARD],
                                       .segments = segments,
                                       .segment_count = 2};
    attune_completion done;
    TRY(attune_backward(t->backward, attune_device_queue(t->device), &args, &done));
    TRY(attune_completion_wait(done, UINT64_MAX));
    TRY(attune_buffer_read(t->buffers[D_Q], 0, d_q, sizeof d_q));
    TRY(attune_buffer_read(t->buffers[D_K], 0, d_k, sizeof d_k));
    TRY(attune_buffer_read(t->buffers[D_V], 0, d_v, sizeof d_v));
    return true;
}

/* ------------------------------------------------------------------------------------------------------------ steps */

static uint64_t random_state = 1;

static float uniform(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)(random_state >> 40) / (float)(1 << 24);
}

static int compare(const void *left, const void *right)
{
    return *(const int32_t *)left - *(const int32_t *)right;
}

/* The text of a step, and blocks at sorted random anchors. */
static void sample(const unsigned char *bytes, long size)
{
    const unsigned char *from = bytes + (long)(uniform() * (float)(size - TEXT - BLOCK));
    for (int i = 0; i < TEXT; i++) {
        symbol[i] = from[i];
        place[i] = i;
    }
    for (int b = 0; b < BLOCKS; b++)
        anchor[b] = 1 + (int32_t)(uniform() * (TEXT - 1));
    qsort(anchor, BLOCKS, sizeof *anchor, compare);
    for (int i = 0; i < DRAFT; i++) {
        const int at = anchor[i / BLOCK] + i % BLOCK;
        symbol[TEXT + i] = i % BLOCK ? UNKNOWN : from[at];
        place[TEXT + i] = at;
        wanted[i] = i % BLOCK ? from[at] : -1;
    }
}

/* The weighted mean cross-entropy of the predictions; p becomes its derivative. */
static float cross_entropy(void)
{
    float loss = 0, all = 0, block = 0;
    for (int j = 1; j < BLOCK; j++)
        block += powf(decay, (float)(j - 1));
    all = block * BLOCKS;
    for (int i = 0; i < DRAFT; i++) {
        float *row = p + i * SYMBOLS, most = row[0], sum = 0;
        const float weight = wanted[i] < 0 ? 0 : powf(decay, (float)(i % BLOCK - 1)) / all;
        for (int c = 1; c < SYMBOLS; c++)
            most = row[c] > most ? row[c] : most;
        for (int c = 0; c < SYMBOLS; c++)
            sum += expf(row[c] - most);
        if (wanted[i] >= 0)
            loss -= weight * (row[wanted[i]] - most - logf(sum));
        for (int c = 0; c < SYMBOLS; c++)
            row[c] = weight * (expf(row[c] - most) / sum - (c == wanted[i] ? 1.0f : 0.0f));
    }
    return loss;
}

static bool forward(attention *t, float *loss)
{
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < WIDTH; j++)
            x[r * WIDTH + j] = w.embed[symbol[r] * WIDTH + j] + w.place[place[r] * WIDTH + j];
    rms_norm(n1, x, w.norm1, ROWS);
    linear(q, n1 + TEXT * WIDTH, w.q, DRAFT, WIDTH, WIDTH);
    linear(k, n1, w.k, ROWS, WIDTH, WIDTH);
    linear(v, n1, w.v, ROWS, WIDTH, WIDTH);
    if (!attend(t))
        return false;
    linear(y, a, w.o, DRAFT, WIDTH, WIDTH);
    for (int i = 0; i < DRAFT * WIDTH; i++)
        y[i] += x[TEXT * WIDTH + i];
    rms_norm(n2, y, w.norm2, DRAFT);
    linear(u, n2, w.up, DRAFT, HIDDEN, WIDTH);
    for (int i = 0; i < DRAFT * HIDDEN; i++)
        s[i] = u[i] / (1 + expf(-u[i]));
    linear(z, s, w.down, DRAFT, WIDTH, HIDDEN);
    for (int i = 0; i < DRAFT * WIDTH; i++)
        z[i] += y[i];
    rms_norm(n3, z, w.norm3, DRAFT);
    linear(p, n3, w.out, DRAFT, SYMBOLS, WIDTH);
    *loss = cross_entropy();
    return true;
}

static bool backward(attention *t)
{
    float *const gradients[] = {d_x, d_n1, d_a, d_y, d_n2, d_s, d_z, d_n3};
    const size_t sizes[] = {sizeof d_x,  sizeof d_n1, sizeof d_a, sizeof d_y,
                            sizeof d_n2, sizeof d_s,  sizeof d_z, sizeof d_n3};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        memset(gradients[i], 0, sizes[i]);
    memset(&d, 0, sizeof d);
    linear_backward(p, d_n3, d.out, n3, w.out, DRAFT, SYMBOLS, WIDTH);
    rms_norm_backward(d_n3, d_z, d.norm3, z, w.norm3, DRAFT);
    linear_backward(d_z, d_s, d.down, s, w.down, DRAFT, WIDTH, HIDDEN);
    for (int i = 0; i < DRAFT * HIDDEN; i++) {
        const float sigmoid = 1 / (1 + expf(-u[i]));
        d_u[i] = d_s[i] * sigmoid * (1 + u[i] * (1 - sigmoid));
    }
    linear_backward(d_u, d_n2, d.up, n2, w.up, DRAFT, HIDDEN, WIDTH);
    memcpy(d_y, d_z, sizeof d_y);
    rms_norm_backward(d_n2, d_y, d.norm2, y, w.norm2, DRAFT);
    linear_backward(d_y, d_a, d.o, a, w.o, DRAFT, WIDTH, WIDTH);
    if (!attend_backward(t))
        return false;
    linear_backward(d_q, d_n1 + TEXT * WIDTH, d.q, n1 + TEXT * WIDTH, w.q, DRAFT, WIDTH, WIDTH);
    linear_backward(d_k, d_n1, d.k, n1, w.k, ROWS, WIDTH, WIDTH);
    linear_backward(d_v, d_n1, d.v, n1, w.v, ROWS, WIDTH, WIDTH);
    memcpy(d_x + TEXT * WIDTH, d_y, sizeof d_y);
    rms_norm_backward(d_n1, d_x, d.norm1, x, w.norm1, ROWS);
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < WIDTH; j++) {
            d.embed[symbol[r] * WIDTH + j] += d_x[r * WIDTH + j];
            d.place[place[r] * WIDTH + j] += d_x[r * WIDTH + j];
        }
    return true;
}

/* Kingma & Ba (2015). */
static void adam(int step)
{
    float *values = (float *)&w, *m = (float *)&first, *squares = (float *)&second;
    const float *gradients = (const float *)&d;
    const float fade1 = 1 - powf(0.9f, (float)step), fade2 = 1 - powf(0.99f, (float)step);
    for (int i = 0; i < WEIGHTS; i++) {
        m[i] = 0.9f * m[i] + 0.1f * gradients[i];
        squares[i] = 0.99f * squares[i] + 0.01f * gradients[i] * gradients[i];
        values[i] -= rate * m[i] / fade1 / (sqrtf(squares[i] / fade2) + 1e-8f);
    }
}

static void make_weights(void)
{
    float *values = (float *)&w, *const norms[3] = {w.norm1, w.norm2, w.norm3};
    for (int i = 0; i < WEIGHTS; i++)
        values[i] = (uniform() - 0.5f) * 0.25f;
    for (int i = 0; i < 3 * WIDTH; i++)
        norms[i / WIDTH][i % WIDTH] = 1;
}

static bool train(attention *t, const unsigned char *bytes, long size, int steps, float *begin, float *end)
{
    float recent = 0;
    make_weights();
    for (int step = 1; step <= steps; step++) {
        float loss;
        sample(bytes, size);
        if (!build_masks(t) || !forward(t, &loss) || !backward(t))
            return false;
        adam(step);
        /* An exponential moving average of the loss. */
        recent = step == 1 ? loss : 0.9f * recent + 0.1f * loss;
        if (step == 1)
            *begin = loss;
        if (step == 1 || step % 20 == 0 || step == steps)
            printf("step %4d   loss %.3f\n", step, (double)recent);
    }
    *end = recent;
    return true;
}

static unsigned char *read_text(const char *path, long *size)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) || (*size = ftell(file)) < TEXT + BLOCK + 1 || fseek(file, 0, SEEK_SET))
        return fprintf(stderr, "%s: no text of at least %d bytes\n", path, TEXT + BLOCK + 1), NULL;
    unsigned char *bytes = malloc((size_t)*size);
    if (bytes && fread(bytes, 1, (size_t)*size, file) != (size_t)*size)
        *size = 0;
    fclose(file);
    return bytes;
}

int main(int count, char **words)
{
    const char *device = "cpu", *path = NULL;
    int steps = 300;
    bool deterministic = false;
    for (int i = 1; i < count; i++) {
        if (!strcmp(words[i], "--device") && i + 1 < count)
            device = words[++i];
        else if (!strcmp(words[i], "--steps") && i + 1 < count)
            steps = atoi(words[++i]);
        else if (!strcmp(words[i], "--deterministic"))
            deterministic = true;
        else if (!path && strncmp(words[i], "--", 2) != 0)
            path = words[i];
        else
            steps = 0;
    }
    if (!path || steps < 2)
        return fprintf(stderr, "usage: %s [--device cpu|vulkan:0|cuda:0] [--steps N] [--deterministic] TEXT\n",
                       words[0]),
               2;
    long size;
    unsigned char *bytes = read_text(path, &size);
    if (!bytes)
        return 1;
    attention t = {.device = NULL};
    float begin = 0, end = 0;
    const bool ok = attention_create(&t, device, deterministic) && train(&t, bytes, size, steps, &begin, &end);
    attention_destroy(&t);
    free(bytes);
    if (ok)
        printf("loss %.3f -> %.3f\n", (double)begin, (double)end);
    return ok && end < begin ? 0 : 1;
}
