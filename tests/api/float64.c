/* SPDX-License-Identifier: MIT */
/* Plans of float64 against attention whose score functions and derivatives are written here in C: nothing of the
 * library's own evaluation decides what is right. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include <attune/attune.h>

#define MAKE(call) cr_assert_eq((call), ATTUNE_OK, "%s", attune_last_error())

enum { HEADS = 2, ROWS = 5, KEYS = 7, DIM = 8 };

static const float slopes[HEADS] = {0.3f, -1.7f};

/* A score, its derivative by the scaled product, and by slope[h]. */
typedef struct modified {
    double value, by_score, by_slope;
} modified;

typedef modified (*score_function)(double s, double slope, int q, int kv);

static modified third(double s, double slope, int q, int kv)
{
    (void)slope, (void)q, (void)kv;
    return (modified){s * (1.0 / 3.0), 1.0 / 3.0, 0};
}

static modified capped(double s, double slope, int q, int kv)
{
    (void)slope, (void)q, (void)kv;
    const double t = tanh(s / 0.7);
    return (modified){0.7 * t, 1 - t * t, 0};
}

static modified sum_of_literals(double s, double slope, int q, int kv)
{
    (void)slope, (void)q, (void)kv;
    return (modified){s * (0.1 + 0.2) * (0.1 * 3.0), (0.1 + 0.2) * (0.1 * 3.0), 0};
}

static modified sloped(double s, double slope, int q, int kv)
{
    return (modified){s + slope * 0.1 * (kv - q), 1, 0.1 * (kv - q)};
}

static modified power_of_two(double s, double slope, int q, int kv)
{
    (void)slope, (void)q, (void)kv;
    return (modified){exp2(s * 0.3) - 1.1, 0.3 * log(2.0) * exp2(s * 0.3), 0};
}

static modified logarithm(double s, double slope, int q, int kv)
{
    (void)slope, (void)q, (void)kv;
    return (modified){log2(fabs(s) + 1.7), (s > 0 ? 1 : -1) / (log(2.0) * (fabs(s) + 1.7)), 0};
}

static modified rest(double s, double slope, int q, int kv)
{
    (void)slope, (void)q, (void)kv;
    return (modified){s - floor(s / 0.3) * 0.3, 1, 0};
}

static modified gate(double s, double slope, int q, int kv)
{
    (void)q, (void)kv;
    const double g = 1 / (1 + exp(-1.3 * s));
    return (modified){g * (0.9 + 0.1 * 0.2 * slope), (0.9 + 0.1 * 0.2 * slope) * 1.3 * g * (1 - g), g * (0.1 * 0.2)};
}

static modified clamped(double s, double slope, int q, int kv)
{
    (void)slope, (void)q, (void)kv;
    const bool inside = s > -0.1 && s < 0.2;
    return (modified){(s < -0.1 ? -0.1 : s > 0.2 ? 0.2 : s) * 1e-1, inside ? 1e-1 : 0, 0};
}

static modified power(double s, double slope, int q, int kv)
{
    (void)slope, (void)q, (void)kv;
    return (modified){pow(fabs(s) + 0.1, 1.7), (s > 0 ? 1.7 : -1.7) * pow(fabs(s) + 0.1, 0.7), 0};
}

/* 3 * 0.1 is above 0.3 in float64, and equal to it in float32. */
static modified chosen(double s, double slope, int q, int kv)
{
    (void)slope, (void)q;
    return kv * 0.1 <= 0.3 ? (modified){s, 1, 0} : (modified){s * 0.6, 0.6, 0};
}

static modified small_and_large(double s, double slope, int q, int kv)
{
    (void)slope, (void)q, (void)kv;
    return (modified){s * (1e-40 * 1e40), 1e-40 * 1e40, 0};
}

static modified reciprocal_root(double s, double slope, int q, int kv)
{
    (void)slope, (void)q, (void)kv;
    const double x = fabs(s) + 0.1, r = 1 / sqrt(x);
    return (modified){r, (s > 0 ? -0.5 : 0.5) * r / x, 0};
}

static modified whole(double s, double slope, int q, int kv)
{
    (void)slope, (void)q, (void)kv;
    return (modified){s * (16777217.0 / 16777216.0), 16777217.0 / 16777216.0, 0};
}

static modified folded_choice(double s, double slope, int q, int kv)
{
    (void)slope, (void)q, (void)kv;
    return (modified){s * (0.1 + 0.2 == 0.3 ? 1.0 : 2.0), 0.1 + 0.2 == 0.3 ? 1.0 : 2.0, 0};
}

static const struct {
    const char *text;
    score_function function;
} scores[] = {
    {"score * (1.0 / 3.0)", third},
    {"softcap(0.7)", capped},
    {"score * (0.1 + 0.2) * (0.1 * 3.0)", sum_of_literals},
    {"score + slope[h] * 0.1 * (kv - q)", sloped},
    {"exp2(score * 0.3) - 1.1", power_of_two},
    {"log2(abs(score) + 1.7)", logarithm},
    {"score % 0.3", rest},
    {"sigmoid(1.3 * score) * (0.9 + 0.1 * 0.2 * slope[h])", gate},
    {"clamp(score, -0.1, 0.2) * 1e-1", clamped},
    {"pow(abs(score) + 0.1, 1.7)", power},
    {"select(kv * 0.1 <= 0.3, score, score * 0.6)", chosen},
    {"score * (1e-40 * 1e20 * 1e20)", small_and_large},
    {"rsqrt(abs(score) + 0.1)", reciprocal_root},
    {"score * (16777217 / 16777216.0)", whole},
    {"score * (0.1 + 0.2 == 0.3 ? 1.0 : 2.0)", folded_choice},
};

enum { Q, K, V, D_O, INPUTS, O = INPUTS, LSE, D_Q, D_K, D_V, D_SLOPE, TENSORS };
enum { Q_SIZE = HEADS * ROWS * DIM, K_SIZE = HEADS * KEYS * DIM };
static const int sizes[TENSORS] = {Q_SIZE, K_SIZE, K_SIZE, Q_SIZE, Q_SIZE, HEADS *ROWS, Q_SIZE, K_SIZE, K_SIZE, HEADS};

typedef double values[TENSORS][K_SIZE];

static void fill(values x)
{
    uint64_t state = 24;
    for (int i = 0; i < INPUTS; i++)
        for (int j = 0; j < sizes[i]; j++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            x[i][j] = (double)(state >> 11) * 0x1p-52 - 1;
        }
}

static void expect(values x, score_function score)
{
    const double scale = 1 / sqrt(DIM);
    for (int i = INPUTS; i < TENSORS; i++)
        memset(x[i], 0, sizeof x[i]);
    for (int h = 0; h < HEADS; h++)
        for (int q = 0; q < ROWS; q++) {
            modified s[KEYS];
            const double *row = &x[Q][(h * ROWS + q) * DIM], *d_o = &x[D_O][(h * ROWS + q) * DIM];
            double *o = &x[O][(h * ROWS + q) * DIM], *d_q = &x[D_Q][(h * ROWS + q) * DIM];
            double largest = -INFINITY, sum = 0, delta = 0;
            for (int kv = 0; kv < KEYS; kv++) {
                double product = 0;
                for (int d = 0; d < DIM; d++)
                    product += row[d] * x[K][(h * KEYS + kv) * DIM + d];
                s[kv] = score(product * scale, (double)slopes[h], q, kv);
                largest = fmax(largest, s[kv].value);
            }
            for (int kv = 0; kv < KEYS; kv++)
                sum += exp(s[kv].value - largest);
            for (int kv = 0; kv < KEYS; kv++)
                for (int d = 0; d < DIM; d++)
                    o[d] += exp(s[kv].value - largest) / sum * x[V][(h * KEYS + kv) * DIM + d];
            x[LSE][h * ROWS + q] = largest + log(sum);
            for (int d = 0; d < DIM; d++)
                delta += o[d] * d_o[d];
            for (int kv = 0; kv < KEYS; kv++) {
                const double p = exp(s[kv].value - largest) / sum;
                const int key = (h * KEYS + kv) * DIM;
                double d_p = 0;
                for (int d = 0; d < DIM; d++) {
                    d_p += d_o[d] * x[V][key + d];
                    x[D_V][key + d] += p * d_o[d];
                }
                const double d_s = p * (d_p - delta);
                x[D_SLOPE][h] += d_s * s[kv].by_slope;
                for (int d = 0; d < DIM; d++) {
                    d_q[d] += scale * d_s * s[kv].by_score * x[K][key + d];
                    x[D_K][key + d] += scale * d_s * s[kv].by_score * row[d];
                }
            }
        }
}

static attune_tensor view(attune_buffer *buffer, int64_t length)
{
    return (attune_tensor){.buffer = buffer, .dtype = ATTUNE_F64, .rank = 4, .size = {1, HEADS, length, DIM}};
}

static void compute(attune_instance *instance, attune_device *device, const char *text, values x)
{
    attune_expr *expr;
    const attune_symbol symbol = {"slope", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1};
    MAKE(attune_expr_create(instance, ATTUNE_EXPR_SCORE, text, &symbol, 1, &expr));
    attune_buffer *buffers[TENSORS], *slope, *workspace[2];
    for (int i = 0; i < TENSORS; i++) {
        const size_t element = i == D_SLOPE ? sizeof(float) : sizeof(double);
        const float zeros[HEADS] = {0};
        MAKE(attune_buffer_create(device, (uint64_t)sizes[i] * element, &buffers[i]));
        if (i < INPUTS || i == D_SLOPE)
            MAKE(attune_buffer_write(buffers[i], 0, i < INPUTS ? (const void *)x[i] : zeros,
                                     (uint64_t)sizes[i] * element));
    }
    MAKE(attune_buffer_create(device, sizeof slopes, &slope));
    MAKE(attune_buffer_write(slope, 0, slopes, sizeof slopes));
    attune_problem problem = {.struct_size = sizeof problem,
                              .dtype = ATTUNE_F64,
                              .head_dim = DIM,
                              .heads = HEADS,
                              .q_len = ROWS,
                              .kv_len = KEYS,
                              .score = expr,
                              .lse = true};
    attune_plan *plan[2];
    for (int pass = 0; pass < 2; pass++) {
        problem.direction = pass ? ATTUNE_BACKWARD : ATTUNE_FORWARD;
        problem.lse = !pass;
        problem.capture_gradient_elements = pass ? HEADS : 0;
        MAKE(attune_plan_create(device, &problem, NULL, &plan[pass]));
        MAKE(attune_buffer_create(device, attune_plan_workspace_size(plan[pass]) + 1, &workspace[pass]));
    }
    const attune_tensor array = {.buffer = slope, .dtype = ATTUNE_F32, .rank = 1, .size = {HEADS}};
    attune_tensor gradient = array;
    gradient.buffer = buffers[D_SLOPE];
    const attune_tensor lse = {.buffer = buffers[LSE], .dtype = ATTUNE_F64, .rank = 3, .size = {1, HEADS, ROWS}};
    const attune_capture capture = {"slope", array}, d_capture = {"slope", gradient};
    const attune_forward_args forward = {.struct_size = sizeof forward,
                                         .q = view(buffers[Q], ROWS),
                                         .k = view(buffers[K], KEYS),
                                         .v = view(buffers[V], KEYS),
                                         .o = view(buffers[O], ROWS),
                                         .lse = lse,
                                         .captures = &capture,
                                         .capture_count = 1,
                                         .workspace = workspace[0]};
    MAKE(attune_forward(plan[0], attune_device_queue(device), &forward, NULL));
    const bool sloped_text = strstr(text, "slope") != NULL;
    const attune_backward_args backward = {.struct_size = sizeof backward,
                                           .q = forward.q,
                                           .k = forward.k,
                                           .v = forward.v,
                                           .o = forward.o,
                                           .lse = lse,
                                           .d_o = view(buffers[D_O], ROWS),
                                           .d_q = view(buffers[D_Q], ROWS),
                                           .d_k = view(buffers[D_K], KEYS),
                                           .d_v = view(buffers[D_V], KEYS),
                                           .captures = &capture,
                                           .capture_count = 1,
                                           .capture_gradients = &d_capture,
                                           .capture_gradient_count = sloped_text,
                                           .workspace = workspace[1]};
    MAKE(attune_backward(plan[1], attune_device_queue(device), &backward, NULL));
    for (int i = INPUTS; i < D_SLOPE; i++)
        MAKE(attune_buffer_read(buffers[i], 0, x[i], (uint64_t)sizes[i] * sizeof(double)));
    float d_slope[HEADS];
    MAKE(attune_buffer_read(buffers[D_SLOPE], 0, d_slope, sizeof d_slope));
    for (int h = 0; h < HEADS; h++)
        x[D_SLOPE][h] = (double)d_slope[h];
    for (int i = 0; i < TENSORS; i++)
        attune_buffer_destroy(buffers[i]);
    for (int pass = 0; pass < 2; pass++) {
        attune_plan_destroy(plan[pass]);
        attune_buffer_destroy(workspace[pass]);
    }
    attune_buffer_destroy(slope);
    attune_expr_destroy(expr);
}

Test(float64, literals_are_doubles)
{
    static const char *const names[TENSORS] = {
        [O] = "o", [LSE] = "lse", [D_Q] = "d_q", [D_K] = "d_k", [D_V] = "d_v", [D_SLOPE] = "d_slope"};
    static values wanted, found;
    attune_instance *instance;
    attune_device *device;
    MAKE(attune_instance_create(NULL, &instance));
    MAKE(attune_device_open(instance, "cpu", &device));
    fill(wanted);
    fill(found);
    for (size_t n = 0; n < sizeof scores / sizeof scores[0]; n++) {
        expect(wanted, scores[n].function);
        compute(instance, device, scores[n].text, found);
        for (int i = INPUTS; i < TENSORS; i++) {
            double largest = 0, error = 0;
            for (int j = 0; j < sizes[i]; j++) {
                largest = fmax(largest, fabs(wanted[i][j]));
                error = fmax(error, fabs(wanted[i][j] - found[i][j]));
            }
            /* Gradients of captures are stored as float32. */
            const double bound = largest * (i == D_SLOPE ? FLT_EPSILON / 2 : 1e-12);
            cr_expect(error <= bound, "%s: %s is off by %.3g, at most %.3g allowed", scores[n].text, names[i], error,
                      bound);
        }
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}
