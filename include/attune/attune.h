/* SPDX-License-Identifier: MIT */
/*
 * attune: programmable attention on any compute device.
 *
 *     O = softmax(score(scale * Q K^T)) V      over the pairs (q, kv) that the mask allows
 *
 * The mask and the score modification are one-line expressions (docs/expressions.md). The flow of one call:
 *
 *     text -> attune_expr -> attune_mask (which blocks exist) -> attune_plan (kernel, tiles, memory)
 *          -> attune_forward (launches only)
 *
 * Nothing after the plan allocates, compiles or waits.
 *
 * Errors. Every function that can fail returns attune_status. On failure the outputs are untouched, except that a
 * created handle is set to NULL; attune_last_error() has the calling thread's message in full. Nothing aborts, exits or
 * prints.
 *
 * Descriptions are plain structs whose first field is `struct_size`, which the caller sets to sizeof the struct, so
 * that a later library knows which fields this caller has. A field that is zero takes the default printed beside it.
 *
 * Ownership. A handle made by *_create, *_open or *_wrap belongs to the caller and is given back by *_destroy, which
 * accepts NULL. Handles keep what they were made from alive: they may be destroyed in any order. Strings and arrays
 * passed in are copied before the call returns, unless the function says otherwise.
 *
 * Threads. Distinct objects may be used from distinct threads. attune_instance, attune_device, attune_expr, attune_mask
 * and attune_plan do not change after creation and may be shared between threads, except where a function says
 * otherwise. The destroy of an object must not race with its use.
 *
 * Stack. A thread that calls attune needs 64 KiB of stack, beside its thread-local variables and what callbacks of the
 * instance use, for everything that is not a driver's: expressions, masks, plans, and all work of the CPU device.
 * Drivers and NVRTC have needs of their own and do not state them: open Vulkan and CUDA devices and make their plans on
 * a thread with the system's usual stack.
 *
 * fork. What was made before a fork belongs to the parent: a child may make an instance of its own, and neither uses
 * nor destroys what it inherited, whose threads and drivers it has not.
 *
 * Text out. Functions that give text take (buffer, size, needed) as snprintf does: at most size bytes are written, a
 * NUL included, and *needed, if not NULL, receives the bytes needed, the NUL included. buffer may be NULL when size is
 * 0.
 *
 * Units. Sizes and offsets are 64-bit. Tensor strides are in elements, buffer offsets in bytes, time-outs in
 * nanoseconds, measured time in seconds, LSE in natural logarithms.
 */
#ifndef ATTUNE_ATTUNE_H
#define ATTUNE_ATTUNE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define ATTUNE_API
#else
#define ATTUNE_API __attribute__((visibility("default"))) /* marks what the library exports */
#endif

/* -------------------------------------------------------------------------------------------------- version, status */

/* The version of this header: a program may run with a newer library (attune_version). */
#define ATTUNE_VERSION_MAJOR 0
#define ATTUNE_VERSION_MINOR 1
#define ATTUNE_VERSION_PATCH 0

/* Returns major * 1000000 + minor * 1000 + patch of the library that is loaded. Any thread. */
ATTUNE_API uint32_t attune_version(void);

/* The numbers are pinned: they never change meaning. */
typedef enum attune_status {
    ATTUNE_OK = 0,
    ATTUNE_INVALID_ARGUMENT = 1,     /* an argument breaks the contract of the function */
    ATTUNE_UNSUPPORTED = 2,          /* understood, but this device or version cannot do it */
    ATTUNE_UNAVAILABLE = 3,          /* no such device or driver here */
    ATTUNE_OUT_OF_HOST_MEMORY = 4,   /* the allocator of the instance returned NULL */
    ATTUNE_OUT_OF_DEVICE_MEMORY = 5, /* the device has no room */
    ATTUNE_DEVICE_LOST = 6,          /* the device failed; every later call on it says so at once */
    ATTUNE_COMPILE_FAILED = 7,       /* the driver's or run-time compiler refused a kernel */
    ATTUNE_PARSE_ERROR = 8,          /* an expression or JSON text is wrong; the message has line and column */
    ATTUNE_DOES_NOT_FIT = 9,         /* a forced option needs more than the device has; the message has both figures */
    ATTUNE_TIMEOUT = 10,             /* a wait ran out of time; nothing else happened */
    ATTUNE_IO = 11,                  /* a file could not be read or written */
    ATTUNE_INTERNAL = 12,            /* a broken invariant inside attune: please report it */
    ATTUNE_CANCELLED = 13            /* stopped as the caller asked: by its callback, or at a limit that it set */
} attune_status;

/* Returns the name of a status, such as "ATTUNE_OK"; "ATTUNE_UNKNOWN" for a number that is none. Never NULL. Any
 * thread. */
ATTUNE_API const char *attune_status_string(attune_status status);

/*
 * Returns the message of the last call that failed in the calling thread: what was wrong, the value, the limit and what
 * to do. Empty before the first failure; a success does not clear it. The text stays valid until the thread's next
 * attune call. Never NULL. Any thread.
 */
ATTUNE_API const char *attune_last_error(void);

/* --------------------------------------------------------------------------------------------------------- instance */

/* The root of everything else. */
typedef struct attune_instance attune_instance;

/* How much a line of the log matters, the gravest first. */
typedef enum attune_log_level {
    ATTUNE_LOG_ERROR = 1,
    ATTUNE_LOG_WARNING = 2,
    ATTUNE_LOG_INFO = 3,
    ATTUNE_LOG_DEBUG = 4
} attune_log_level;

/* Receives one finished line, without a newline. Called from whichever thread called attune; must not call attune. */
typedef void (*attune_log_fn)(void *user, attune_log_level level, const char *message);

/*
 * Host memory. alloc returns memory of at least `size` bytes aligned to `alignment` (a power of two, at most 4,096) or
 * NULL; release takes what alloc returned, never NULL. Both are called from whichever thread called attune, never from
 * one that attune made. Set both or neither.
 */
typedef struct attune_allocator {
    void *(*alloc)(void *user, size_t size, size_t alignment);
    void (*release)(void *user, void *memory);
    void *user;
} attune_allocator;

/*
 * The engine's own threads. run calls body(context, index) for each index below count, each exactly once, on any
 * threads, and returns when all have returned. Indices do not wait for one another: fewer threads than indices may run
 * them, one after another, the caller's among them, or the caller's alone. run is called by the thread that called
 * attune, count is 2 to cpu_threads, and a call of attune may call it several times in a row. A body calls neither run
 * nor attune nor the allocator nor the log. Calls from several threads are calls of run from several threads. run must
 * not throw, and must not leave an index out: results are then undefined.
 */
typedef struct attune_parallel_for {
    void (*run)(void *user, uint32_t count, void (*body)(void *context, uint32_t index), void *context);
    void *user;
} attune_parallel_for;

/* What an instance is made with. */
typedef struct attune_instance_desc {
    uint32_t struct_size;
    uint32_t cpu_threads; /* threads of the CPU device, the caller's included; 0 = the cores this process may use */
    attune_log_fn log;    /* NULL = silence */
    void *log_user;       /* passed to log */
    attune_log_level log_level; /* the finest level that reaches log; 0 = ATTUNE_LOG_WARNING */
    attune_allocator allocator; /* zero = aligned_alloc and free */
    /*
     * Where compiled kernels are kept between runs: made when first needed, shared by any number of processes, held to
     * 256 MiB by removing what was used longest ago. NULL = $XDG_CACHE_HOME/attune, or $HOME/.cache/attune where that
     * is not set (neither is read in a program with more rights than its caller); "" = kept nowhere. A folder that
     * cannot be used only makes plans slower to create, and so does one that is not the caller's own or that others
     * may write to: the log then has a warning.
     */
    const char *cache_folder;
    /*
     * Threads on which the kernels of one plan may be compiled side by side (CUDA), the caller's included: they are
     * started when a plan finds more than one of its kernels neither in a pack nor in the cache, and have ended when
     * attune_plan_create returns. 0 or 1 = the caller's alone; at most 64.
     */
    uint32_t compile_threads;
    /* Runs the loops of the CPU device, which then starts no threads: cpu_threads is how many indices it is given at
     * most. run NULL = threads of the device's own. */
    attune_parallel_for parallel_for;
} attune_instance_desc;

/*
 * Makes an instance: the root that holds the allocator and the log. desc may be NULL: all defaults. Opens no driver and
 * starts no thread.
 */
ATTUNE_API attune_status attune_instance_create(const attune_instance_desc *desc, attune_instance **instance);
ATTUNE_API void attune_instance_destroy(attune_instance *instance);

/* ---------------------------------------------------------------------------------------------------------- devices */

/* What runs kernels. */
typedef enum attune_backend {
    ATTUNE_BACKEND_CPU = 1,
    ATTUNE_BACKEND_VULKAN = 2,
    ATTUNE_BACKEND_CUDA = 3,
    ATTUNE_BACKEND_OPENCL = 4
} attune_backend;

/* Element types. */
typedef enum attune_dtype {
    ATTUNE_F32 = 1,
    ATTUNE_F16 = 2,
    ATTUNE_BF16 = 3,
    ATTUNE_F64 = 4, /* CPU only: computes in float64, the oracle of every test */
    ATTUNE_I32 = 5,
    ATTUNE_I64 = 6, /* captures only; read as i32 */
    ATTUNE_U8 = 7,  /* captures only; read as i32 */
    ATTUNE_BOOL = 8 /* captures only; one byte, non-zero is true */
} attune_dtype;

/* Returns the bytes of one element, 0 for a number that is no dtype. Any thread. */
ATTUNE_API size_t attune_dtype_size(attune_dtype dtype);
/* Returns "f32", "bf16", ...; "?" for a number that is no dtype. Never NULL. Any thread. */
ATTUNE_API const char *attune_dtype_string(attune_dtype dtype);

/* Matrix units, as bits of attune_limits.matrix. */
#define ATTUNE_MATRIX_MMA_SYNC UINT32_C(1)  /* CUDA mma.sync with cp.async: sm80 and later */
#define ATTUNE_MATRIX_WGMMA    UINT32_C(2)  /* CUDA wgmma with TMA: sm90a only */
#define ATTUNE_MATRIX_TCGEN05  UINT32_C(4)  /* CUDA tcgen05: sm100a only */
#define ATTUNE_MATRIX_COOPMAT  UINT32_C(8)  /* VK_KHR_cooperative_matrix */
#define ATTUNE_MATRIX_COOPMAT2 UINT32_C(16) /* VK_NV_cooperative_matrix2, workgroup scope */

/* Fragment layouts, the values of attune_limits.fragment_layout: which lane holds which element of a cooperative
 * matrix. */
#define ATTUNE_FRAGMENT_QUADS                                                                                          \
    1 /* 16x16, as PTX mma: four lanes hold two rows, two adjacent of every eight columns each */
#define ATTUNE_FRAGMENT_COLUMNS 2 /* each lane holds one column */

/*
 * What a device can do: the planner's only knowledge of it. A backend fills it for a real device; the table of profiles
 * (attune_profile_get) has it for known ones.
 */
typedef struct attune_limits {
    uint32_t struct_size;
    attune_backend backend;
    uint32_t architecture;           /* CUDA: compute capability, 86 for sm_86; 0 elsewhere */
    uint32_t compute_units;          /* SMs, CUs, Xe cores, CPU threads */
    uint32_t shared_memory;          /* bytes that one workgroup may use, opt-in included; CPU: L2 bytes per core */
    uint32_t shared_memory_unit;     /* bytes that the workgroups on one compute unit share; 0 = shared_memory */
    uint32_t shared_memory_reserved; /* bytes that the driver takes of each workgroup */
    uint32_t workgroup_invocations;  /* threads in a workgroup; CPU: 1 */
    uint32_t unit_invocations;       /* threads that one compute unit holds; 0 = workgroup_invocations */
    uint32_t registers;              /* 32-bit registers of a compute unit; 0 = unknown */
    uint32_t registers_per_thread;   /* 0 = unknown */
    uint32_t subgroup_size;          /* warp, wave, SIMD lanes of the CPU (in f32) */
    uint32_t matrix;                 /* ATTUNE_MATRIX_* */
    uint32_t matrix_m;               /* cooperative matrix shape for f16 and bf16; 0 = none */
    uint32_t matrix_n;
    uint32_t matrix_k;
    uint32_t push_constants;  /* bytes; 0 = not limited */
    bool f16;                 /* 16-bit float storage and arithmetic */
    bool bf16;                /* bf16 matrices or arithmetic; storage works everywhere as 16-bit integers */
    bool subgroup_operations; /* reductions and shuffles that can be trusted */
    bool f64;                 /* float64 arithmetic in attune's kernels (CPU) */
    uint64_t storage_range;   /* bytes of one bound storage buffer; 0 = not limited */
    uint64_t memory;          /* bytes of device memory; 0 = unknown */
    bool host;                /* Vulkan: the driver runs kernels on the CPU, in subgroups that are its vectors */
    uint32_t fragment_layout; /* ATTUNE_FRAGMENT_*, of cooperative matrices; 0 = unknown */
} attune_limits;

/* What is here, or why it is not. */
typedef struct attune_device_info {
    uint32_t struct_size;
    attune_backend backend;
    bool available;
    char id[32];      /* what attune_device_open takes: "cpu", "vulkan:0"; the backend's name alone if unavailable */
    char name[128];   /* "AMD EPYC 7763", "NVIDIA H200" */
    char driver[128]; /* driver name and version; empty if none */
    char uuid[40];    /* hexadecimal; empty if the backend has none */
    char reason[256]; /* why it is unavailable; empty if it is available */
    attune_limits limits;
} attune_device_info;

/*
 * Counts and describes what is here: one entry for each device and one for each backend that has none, with the reason.
 * The CPU is always entry 0. attune_device_describe fails with INVALID_ARGUMENT past the count.
 */
ATTUNE_API attune_status attune_device_count(attune_instance *instance, uint32_t *count);
ATTUNE_API attune_status attune_device_describe(attune_instance *instance, uint32_t index, attune_device_info *info);

/* An open device. */
typedef struct attune_device attune_device;

/*
 * Opens a device by its id ("cpu", "vulkan:0", "cuda:1"; a backend's name alone is its device 0). UNAVAILABLE, with the
 * reason, if it is not there. "cuda:0@a6000" lays a profile over it: plans are then those of the smaller device, but
 * for the architecture that they are compiled for; INVALID_ARGUMENT if the profile is of another backend or has more
 * than the device. The CPU device starts its worker threads here, and only here; they sleep between calls. It starts
 * none where the instance has a parallel_for.
 */
ATTUNE_API attune_status attune_device_open(attune_instance *instance, const char *id, attune_device **device);
ATTUNE_API void attune_device_destroy(attune_device *device);
/* The description of an open device. */
ATTUNE_API attune_status attune_device_info_get(const attune_device *device, attune_device_info *info);

/*
 * Measures what the device reaches on independent fused multiply-adds of the dtype (operations per second, an FMA
 * counts two), by the units that the backend has kernels of the dtype for: matrix units into f32 on CUDA for f16 and
 * bf16, and on Vulkan for f16 where it has cooperative matrices; Vulkan computes bf16 in f32. And on a large copy
 * (bytes per second, read plus write): the peaks that `attune bench` reports shares of. Takes about a second, uses the
 * whole device, allocates. Either output may be NULL.
 */
ATTUNE_API attune_status attune_device_measure(attune_device *device, attune_dtype dtype, double *flops,
                                               double *bandwidth);

/* A known device's limits. name and description live as long as the library. */
typedef struct attune_profile {
    uint32_t struct_size;
    const char *name;        /* "a6000", "h200", "v3d" */
    const char *description; /* "NVIDIA RTX A6000 (sm_86)" */
    const char *source;      /* where the figures come from */
    attune_limits limits;
} attune_profile;

/* The number of profiles, and the index-th. INVALID_ARGUMENT past the count. Any thread. */
ATTUNE_API uint32_t attune_profile_count(void);
ATTUNE_API attune_status attune_profile_get(uint32_t index, attune_profile *profile);
/* By name, without regard to case. INVALID_ARGUMENT, listing the names, if there is none. Any thread. */
ATTUNE_API attune_status attune_profile_find(const char *name, attune_profile *profile);

/* ---------------------------------------------------------------------------------------------------------- buffers */

/* Memory of one device. */
typedef struct attune_buffer attune_buffer;

/* Allocates `size` bytes (at least 1) of device memory, contents undefined. */
ATTUNE_API attune_status attune_buffer_create(attune_device *device, uint64_t size, attune_buffer **buffer);
/*
 * Wraps host memory that the CPU device then reads and writes in place. The memory stays the caller's and must outlive
 * the buffer. UNSUPPORTED on devices that are not the CPU: attune_vulkan_buffer_wrap (vulkan.h) and
 * attune_cuda_buffer_wrap (cuda.h) wrap memory of theirs.
 */
ATTUNE_API attune_status attune_buffer_wrap(attune_device *device, void *memory, uint64_t size, attune_buffer **buffer);
ATTUNE_API void attune_buffer_destroy(attune_buffer *buffer);
ATTUNE_API uint64_t attune_buffer_size(const attune_buffer *buffer);
/* Copies to or from host memory; return when the copy is done. The range must lie in the buffer. One buffer, one
 * thread. */
ATTUNE_API attune_status attune_buffer_write(attune_buffer *buffer, uint64_t offset, const void *data, uint64_t size);
ATTUNE_API attune_status attune_buffer_read(const attune_buffer *buffer, uint64_t offset, void *data, uint64_t size);

/* The most dimensions of a tensor or an array. */
#define ATTUNE_MAX_RANK 4

/*
 * A view of a buffer. size and stride are outermost first; element (i, j, ...) lies at
 * offset + dtype size * (i * stride[0] + j * stride[1] + ...). Strides may be any, also 0 or negative on inputs, as
 * long as every element lies in the buffer; the last dimension of q, k, v and o is contiguous (stride 1), so that a V
 * whose keys are (a transposed cache) is refused; outputs must not overlap themselves. All strides 0 = contiguous.
 * offset is a multiple of the element size.
 */
typedef struct attune_tensor {
    attune_buffer *buffer;
    uint64_t offset;
    attune_dtype dtype;
    uint32_t rank;
    int64_t size[ATTUNE_MAX_RANK];
    int64_t stride[ATTUNE_MAX_RANK];
} attune_tensor;

/* The same in host memory: what masks are built from. */
typedef struct attune_array {
    const void *data;
    attune_dtype dtype;
    uint32_t rank;
    int64_t size[ATTUNE_MAX_RANK];
    int64_t stride[ATTUNE_MAX_RANK];
} attune_array;

/* ------------------------------------------------------------------------------------------------------ expressions */

/* A mask or score expression, parsed, typed and simplified. */
typedef struct attune_expr attune_expr;

/* What an expression computes. */
typedef enum attune_expr_kind {
    ATTUNE_EXPR_MASK = 1, /* bool: may this pair attend? variables b h q kv h_kv q_len kv_len */
    ATTUNE_EXPR_SCORE = 2 /* f32: the modified score; also `score`, the scaled dot product */
} attune_expr_kind;

/* What a name of the caller stands for. */
typedef enum attune_symbol_kind {
    ATTUNE_SYMBOL_CAPTURE = 1,  /* an array, read as name[i, j]: one index for each dimension */
    ATTUNE_SYMBOL_PARAMETER = 2 /* a scalar (ATTUNE_I32 or ATTUNE_F32): of a score given at each call, of a mask when
                                   the mask is built; changing it recompiles nothing */
} attune_symbol_kind;

/* A name that an expression may use. */
typedef struct attune_symbol {
    const char
        *name; /* [A-Za-z_][A-Za-z0-9_]*, at most 63 characters; no variable, function or preset of the language */
    attune_symbol_kind kind;
    attune_dtype dtype;
    uint32_t rank; /* captures: 1 to 4, or 0 = taken from the first use; parameters: 0 */
} attune_symbol;

#define ATTUNE_EXPR_MAX_LENGTH  4096 /* bytes of text */
#define ATTUNE_EXPR_MAX_DEPTH   64   /* nesting */
#define ATTUNE_EXPR_MAX_NODES   1024 /* nodes of the IR after presets are expanded */
#define ATTUNE_EXPR_MAX_SYMBOLS 16   /* captures and parameters that one expression uses */

/*
 * Parses, types and simplifies an expression. PARSE_ERROR, with line, column, a caret and what was expected, if the
 * text is wrong. Symbols that the text does not use are dropped. The language: docs/expressions.md.
 */
ATTUNE_API attune_status attune_expr_create(attune_instance *instance, attune_expr_kind kind, const char *text,
                                            const attune_symbol *symbols, uint32_t symbol_count, attune_expr **expr);
ATTUNE_API void attune_expr_destroy(attune_expr *expr);

/* The symbols that the expression uses, in the order of their first use. name lives as long as the expression. */
ATTUNE_API uint32_t attune_expr_symbol_count(const attune_expr *expr);
ATTUNE_API attune_status attune_expr_symbol_get(const attune_expr *expr, uint32_t index, attune_symbol *symbol);

/*
 * The hash of the simplified IR, 128 bits: the same for texts that mean the same after simplification, on every
 * machine. Kernel caches use it as their key.
 */
ATTUNE_API void attune_expr_hash(const attune_expr *expr, uint64_t hash[2]);

/* What attune_expr_print writes. */
typedef enum attune_expr_format {
    ATTUNE_EXPR_TEXT = 1, /* the language itself, from the simplified IR; parses back to the same IR */
    ATTUNE_EXPR_IR = 2,   /* one node a line: number, type, operation, operands */
    ATTUNE_EXPR_C = 3,    /* a C99 function with its prelude, as the CUDA kernels inline it */
    /* Of a score expression: its derivatives, one a line, with respect to score and to each element of a floating-point
     * capture that it reads ("d slopes[h] = kv - q"). INVALID_ARGUMENT for masks; UNSUPPORTED past
     * ATTUNE_EXPR_MAX_NODES nodes. */
    ATTUNE_EXPR_GRADIENT = 4
} attune_expr_format;

/* Writes an expression as text. Any thread. */
ATTUNE_API attune_status attune_expr_print(const attune_expr *expr, attune_expr_format format, char *buffer,
                                           size_t size, size_t *needed);

/* A preset: an expression with parameters, written in the language. All strings live as long as the library. */
typedef struct attune_preset {
    uint32_t struct_size;
    attune_expr_kind kind;
    const char *signature;   /* "window(n)" */
    const char *text;        /* "q >= kv && q - kv < n" */
    const char *description; /* one line */
} attune_preset;

/* The number of presets, and the index-th. INVALID_ARGUMENT past the count. Any thread. */
ATTUNE_API uint32_t attune_preset_count(void);
ATTUNE_API attune_status attune_preset_get(uint32_t index, attune_preset *preset);

/* A capture in host memory. */
typedef struct attune_host_capture {
    const char *name;
    attune_array array;
} attune_host_capture;

/* A parameter's value (a whole number if the parameter is i32). */
typedef struct attune_parameter {
    const char *name;
    double value;
} attune_parameter;

/* Where to evaluate an expression. */
typedef struct attune_point {
    int32_t b, h, q, kv, h_kv, q_len, kv_len;
    float score;
} attune_point;

/*
 * Evaluates an expression at one point, with captures in host memory: the definition of what every kernel computes.
 * A mask gives 0 or 1. Names that the expression does not use are ignored; one that it uses and that is missing is an
 * error, as is an i64 value that does not fit i32.
 */
ATTUNE_API attune_status attune_expr_evaluate(const attune_expr *expr, const attune_point *point,
                                              const attune_host_capture *captures, uint32_t capture_count,
                                              const attune_parameter *parameters, uint32_t parameter_count,
                                              float *value);

/*
 * Evaluates an expression along a row: at first->kv, first->kv + 1, ... for `count` keys, all else equal; first->score
 * is not read. A mask writes 0 or 1 to values. A score expression finds the scaled products in values and replaces
 * them; precision is ATTUNE_F32, as kernels compute, or ATTUNE_F64: arithmetic and literals are float64, captures and
 * parameters of f32 keep their values. Masks are always evaluated in f32, their literals included. Allocates.
 */
ATTUNE_API attune_status attune_expr_evaluate_row(const attune_expr *expr, attune_dtype precision,
                                                  const attune_point *first, size_t count,
                                                  const attune_host_capture *captures, uint32_t capture_count,
                                                  const attune_parameter *parameters, uint32_t parameter_count,
                                                  double *values);

/* ------------------------------------------------------------------------------------------------------ block masks */

/*
 * Which blocks of the q x kv plane have anything to compute: FlexAttention's BlockMask. A block is empty (in no list),
 * full (every pair allowed; kernels skip the expression) or partial (kernels evaluate the expression). A block counts
 * only the pairs inside q_len x kv_len.
 *
 * A mask keeps its expression and copies of the captures and parameters that it was built with, so that kernels
 * evaluate partial blocks with the values that made the lists. Other values need another mask: a call that gives a
 * parameter of the mask's with another value is refused. Captures of a call are the score expression's alone, also
 * where the mask reads one of the same name.
 */
typedef struct attune_mask attune_mask;

/*
 * Called from time to time, on the thread that called attune, with the share of the work that is done, from 0 to 1 and
 * never falling. Anything but 0 stops the work. Must not call attune.
 */
typedef int (*attune_progress_fn)(void *user, double done);

/* The size of a mask, and of its blocks. */
typedef struct attune_mask_desc {
    uint32_t struct_size;
    uint32_t q_block;  /* rows of a block, a multiple of 16 from 16 to 1,024; 0 = 128 */
    uint32_t kv_block; /* columns of a block, likewise; 0 = 128 */
    /*
     * Those of the calls. A mask whose expression reads b serves calls of this batch only, one that reads h or h_kv
     * calls of as many heads, and one that reads h_kv calls of as many kv_heads; any other serves any number.
     */
    int64_t batch;    /* 0 = 1 */
    int64_t heads;    /* query heads; 0 = 1 */
    int64_t kv_heads; /* divides heads; 0 = heads */
    int64_t q_len;    /* at least 1, below 2^31 */
    int64_t kv_len;   /* at least 1, below 2^31 */
    /*
     * A mask of one segment of the keys (attune_segment): its kv_len keys are those from kv_start on of kv_total, and
     * in the expression kv and kv_len are of the whole. kv_total 0 = the keys are the whole; kv_start is then 0.
     */
    int64_t kv_start;
    int64_t kv_total;
    /*
     * Of attune_mask_create, whose time the expression decides; the other functions that take a description refuse
     * them. The callback comes every few milliseconds. max_work is for expressions of others: the most units of work,
     * the same on every machine. A unit is one node of the simplified expression at one pair, or its bounds over one
     * part of the plane, as far as bounds over a larger part have not decided the node; an element of a capture that
     * bounds look at; or an entry of a list that is written. Some 10^8 are done in a second. Either way ends in
     * CANCELLED.
     */
    attune_progress_fn progress; /* NULL = none */
    void *progress_user;         /* passed to progress */
    uint64_t max_work;           /* 0 = no limit */
} attune_mask_desc;

/*
 * Builds a mask from a mask expression by interval analysis over a quadtree of blocks: exactly what evaluation of every
 * element gives, at a cost near the number of boundary blocks. Captures are host arrays; the log has a warning of one
 * that is shorter than a variable that indexes it alone, as in doc[kv]. Where the expression does not use b (h), one
 * list serves all batches (heads). CANCELLED when desc->progress or desc->max_work stops it.
 */
ATTUNE_API attune_status attune_mask_create(attune_instance *instance, const attune_mask_desc *desc,
                                            const attune_expr *expr, const attune_host_capture *captures,
                                            uint32_t capture_count, const attune_parameter *parameters,
                                            uint32_t parameter_count, attune_mask **mask);

/*
 * The lists. rows = batch * heads * q_blocks (batch and heads as stored: 1 where they broadcast), ordered batch, head,
 * block row. Row r has kv_num_blocks[r] block columns, ascending, at kv_indices[kv_offsets[r] ...]. full_* likewise,
 * disjoint. q_* and full_q_* are the transposes: rows = batch * heads * kv_blocks, entries block rows. offsets has rows
 * + 1 entries.
 */
typedef struct attune_mask_lists {
    uint32_t struct_size;
    uint32_t q_block, kv_block;
    int64_t batch, heads; /* as stored: 1 where they broadcast */
    int64_t q_len, kv_len;
    int64_t q_blocks, kv_blocks; /* ceil(q_len / q_block), ceil(kv_len / kv_block) */
    const int32_t *kv_num_blocks, *full_kv_num_blocks, *q_num_blocks, *full_q_num_blocks;
    const int64_t *kv_offsets, *full_kv_offsets, *q_offsets, *full_q_offsets;
    const int32_t *kv_indices, *full_kv_indices, *q_indices, *full_q_indices;
} attune_mask_lists;

/*
 * Builds a mask from lists, FlexAttention's from_kv_blocks: only struct_size, batch, heads and the kv_* and full_kv_*
 * arrays of `lists` are read (offsets may be NULL: rows then follow one another; full_kv_num_blocks may be NULL: none
 * full); the transposes are computed. lists->batch and heads are 1 or the description's; a mask with lists of each
 * batch (head) serves calls of the description's batch (heads) only. Indices must ascend, be in range and be in one
 * list only. expr is what partial blocks evaluate; it may be NULL if none is partial.
 */
ATTUNE_API attune_status attune_mask_create_lists(attune_instance *instance, const attune_mask_desc *desc,
                                                  const attune_mask_lists *lists, const attune_expr *expr,
                                                  const attune_host_capture *captures, uint32_t capture_count,
                                                  const attune_parameter *parameters, uint32_t parameter_count,
                                                  attune_mask **mask);

/*
 * Builds a mask from a dense array [batch or 1, heads or 1, q_len, kv_len] of ATTUNE_BOOL or ATTUNE_U8: non-zero may
 * attend. The array is copied; partial blocks read the copy.
 */
ATTUNE_API attune_status attune_mask_create_dense(attune_instance *instance, const attune_mask_desc *desc,
                                                  const attune_array *dense, attune_mask **mask);
/*
 * A mask whose blocks follow a tensor on a device: the dense mask, or the additive bias, that an engine makes anew for
 * each step. Made once for the longest lengths (desc); attune_mask_update then reads the tensor and writes the lists
 * where both lie, in launches alone, so that kernels skip the blocks that the tensor empties and evaluate nothing in
 * those that it leaves whole.
 *
 * dtype is the tensor's: ATTUNE_BOOL or ATTUNE_U8, where non-zero may attend; or ATTUNE_F32, F16 or BF16, where
 * negative infinity forbids the pair and every other value allows it. What else a bias adds is the score expression's:
 * "score + bias[b, h, q, kv]" with the same tensor as its capture. A tensor of 0 and negative infinity needs none.
 *
 * tensor_batch and tensor_heads are the description's batch and heads, or 1 for a tensor that all of them share.
 * desc.kv_total must be 0. The lists lie on the device: functions that read a mask on the host, combine it or upload it
 * elsewhere answer UNSUPPORTED. Allocates for the most blocks that the lengths have, and may compile.
 */
ATTUNE_API attune_status attune_mask_create_tensor(attune_device *device, const attune_mask_desc *desc,
                                                   attune_dtype dtype, int64_t tensor_batch, int64_t tensor_heads,
                                                   attune_mask **mask);
ATTUNE_API void attune_mask_destroy(attune_mask *mask);

/* The lists of a mask; the arrays live as long as the mask. */
ATTUNE_API attune_status attune_mask_lists_get(const attune_mask *mask, attune_mask_lists *lists);

/*
 * A part of a mask: batches [batch0, batch0 + batch), heads likewise, and rows from block row q_block0 on, q_blocks of
 * them (0 = to the end). The expression goes on seeing the whole mask's b, h and q. A broadcast batch or head stays
 * broadcast.
 */
typedef struct attune_mask_range {
    uint32_t struct_size;
    int64_t batch0, batch; /* batch 0 = to the end */
    int64_t head0, heads;  /* heads 0 = to the end */
    int64_t q_block0, q_blocks;
} attune_mask_range;

/* Makes a mask of a part of another. */
ATTUNE_API attune_status attune_mask_slice(const attune_mask *mask, const attune_mask_range *range,
                                           attune_mask **slice);

/*
 * Combine masks of the same lengths, block sizes, batch and heads, exactly: blocks that the lists alone cannot decide
 * are evaluated. Captures and parameters of the same name must have the same values. Slices are combined before
 * slicing.
 */
ATTUNE_API attune_status attune_mask_and(const attune_mask *a, const attune_mask *b, attune_mask **mask);
ATTUNE_API attune_status attune_mask_or(const attune_mask *a, const attune_mask *b, attune_mask **mask);
ATTUNE_API attune_status attune_mask_not(const attune_mask *a, attune_mask **mask);

/* What a call may do, and who is told of it: as the fields of attune_mask_desc. */
typedef struct attune_mask_work {
    uint32_t struct_size;
    attune_progress_fn progress; /* NULL = none */
    void *progress_user;
    uint64_t max_work; /* units; 0 = no limit */
} attune_mask_work;

/* What attune_mask_combine does. */
typedef enum attune_mask_op {
    ATTUNE_MASK_AND = 1,
    ATTUNE_MASK_OR = 2,
    ATTUNE_MASK_NOT = 3 /* b is NULL */
} attune_mask_op;

/* attune_mask_and, or, not within limits: CANCELLED when work (NULL = none) stops it. Units are those of building, and
 * an entry of a list, or eight elements of a dense mask, that are read. */
ATTUNE_API attune_status attune_mask_combine(attune_mask_op op, const attune_mask *a, const attune_mask *b,
                                             const attune_mask_work *work, attune_mask **mask);

/* How much a mask allows, and what it takes. */
typedef struct attune_mask_stats {
    uint32_t struct_size;
    double density; /* share of pairs that may attend; exact if it was asked for, else an estimate between bounds */
    double block_density; /* share of blocks that are not empty: what a kernel computes */
    int64_t pairs;        /* pairs that may attend, over the whole batch and heads; -1 if not asked for */
    int64_t full_blocks, partial_blocks, blocks; /* as stored: broadcast counts once */
    uint64_t bytes;                              /* host memory that the mask holds */
} attune_mask_stats;

/* Counts. With `exact`, every partial block is evaluated, which takes time in proportion to their elements. */
ATTUNE_API attune_status attune_mask_stats_get(const attune_mask *mask, bool exact, attune_mask_stats *stats);
/* The exact ones within limits: CANCELLED when work (NULL = none) stops it. */
ATTUNE_API attune_status attune_mask_stats_count(const attune_mask *mask, const attune_mask_work *work,
                                                 attune_mask_stats *stats);

/*
 * Draws one batch and head. Text: at most `columns` wide and `rows` high, one character for each group of blocks: a
 * full group U+2588, a mixed one U+2592, an empty one a space. Pixels: 8-bit RGB, rows top to bottom, one pixel for
 * each group of blocks: full dark, partial lighter with the share of full blocks, empty white; *width and *height hold
 * the largest size on entry and the size drawn on return; pixels may be NULL to ask for the size.
 */
ATTUNE_API attune_status attune_mask_draw_text(const attune_mask *mask, int64_t batch, int64_t head, uint32_t columns,
                                               uint32_t rows, char *buffer, size_t size, size_t *needed);
ATTUNE_API attune_status attune_mask_draw_pixels(const attune_mask *mask, int64_t batch, int64_t head, uint8_t *pixels,
                                                 uint32_t *width, uint32_t *height);

/*
 * Copies a mask's lists and captures to a device, where kernels read them. A mask must be uploaded to a device before
 * attune_forward uses it there; uploading twice does nothing. On the CPU it costs nothing. Not to be called while
 * another thread uses the mask.
 */
ATTUNE_API attune_status attune_mask_upload(attune_mask *mask, attune_device *device);

/* ------------------------------------------------------------------------------------------------------------ plans */

/* The pass that a plan is for. */
typedef enum attune_direction { ATTUNE_FORWARD = 0, ATTUNE_BACKWARD = 1 } attune_direction;

/*
 * What is to be computed. Lengths and batch are maxima: a plan serves every shorter one without recompiling. A forward
 * plan for more queries than the decode kernel pays for also has that kernel, and each call the one that its lengths
 * ask for (attune_plan_choice_at), so that one plan serves a prompt and the steps behind it. With
 * FORCE_USE_FLEX_ATTENTION on it has no decode kernel.
 */
typedef struct attune_problem {
    uint32_t struct_size;
    attune_direction direction;
    attune_dtype dtype;       /* of q, k, v and o: ATTUNE_F32, F16, BF16, or F64 on the CPU; 0 = ATTUNE_F32 */
    uint32_t head_dim;        /* of q and k: a multiple of 8 from 8 to 256 */
    uint32_t head_dim_v;      /* of v and o, likewise; 0 = head_dim */
    int64_t batch;            /* 0 = 1 */
    int64_t kv_batch;         /* batch, or 1: k and v broadcast; 0 = batch */
    int64_t heads;            /* query heads; 0 = 1 */
    int64_t kv_heads;         /* divides heads; query head h reads k and v head h / (heads / kv_heads); 0 = heads */
    int64_t q_len;            /* the longest, at least 1, below 2^31 */
    int64_t kv_len;           /* the longest; 0 = q_len */
    double scale;             /* of q k^T; 0 = 1 / sqrt(head_dim) */
    const attune_expr *mask;  /* the expression of the block mask, as attune_problem_set_mask has it where the mask is
                                 one of a segment with kv_total; NULL = none */
    const attune_expr *score; /* NULL = none */
    bool block_mask;       /* attune_forward gets a block mask; implied by mask; without mask its blocks are all full */
    bool lse;              /* attune_forward may be asked for LSE */
    bool row_max;          /* attune_forward may be asked for row maxima */
    uint32_t mask_q_block; /* the block size of the mask; 0 = 128 */
    uint32_t mask_kv_block; /* 0 = 128 */
    /* ATTUNE_BACKWARD: the most elements, together, of captures whose gradients a call asks for. The workspace grows by
     * 64 bytes for each. 0 = no such gradients. */
    int64_t capture_gradient_elements;
    /*
     * The most segments that a call has (attune_segment); kv_len is the longest one's. 0 = no segments: k and v are
     * tensors. With segments lse is implied, row_max is not to be had, and the workspace also holds a result of each.
     */
    uint32_t segments;
    /*
     * Where they differ from dtype, which is then that of q: F32, F16 or BF16, not with F64. f32 queries and outputs
     * over f16 or bf16 keys and values are what engines keep. docs/planning.md says which kernels mix which types; a
     * device none of whose kernels does is UNSUPPORTED, with the reason, when the plan is made.
     */
    attune_dtype kv_dtype; /* of k and v (and d_k and d_v); 0 = dtype */
    attune_dtype o_dtype;  /* of o (and d_o); 0 = dtype */
} attune_problem;

/* Fills mask, block_mask and the mask's block sizes of a problem from a mask. The expression lives as long as the mask.
 */
ATTUNE_API attune_status attune_problem_set_mask(attune_problem *problem, const attune_mask *mask);

/* Three states for options whose default is the planner's. */
typedef enum attune_choice { ATTUNE_AUTO = 0, ATTUNE_ON = 1, ATTUNE_OFF = 2 } attune_choice;

/*
 * FlexAttention's kernel options for one pass, in lower case; zero = automatic. Setting one that the chosen kernel does
 * not read is an error. docs/planning.md says which kernel reads which.
 */
typedef struct attune_pass_options {
    uint32_t block_m, block_n;   /* BLOCK_M, BLOCK_N: forward tile */
    uint32_t block_m1, block_n1; /* BLOCK_M1, BLOCK_N1: dK and dV tile */
    uint32_t block_m2, block_n2; /* BLOCK_M2, BLOCK_N2: dQ tile */
    uint32_t num_warps;
    uint32_t num_stages;
    uint32_t split_kv;                      /* SPLIT_KV: parts that a decode kernel cuts the keys into */
    attune_choice force_use_flex_attention; /* ON: no decode kernel */
    attune_choice prescale_qk;              /* PRESCALE_QK: fold the scale into q where it costs a step */
    attune_choice rows_guaranteed_safe;     /* ROWS_GUARANTEED_SAFE */
    attune_choice blocks_are_contiguous;    /* BLOCKS_ARE_CONTIGUOUS */
    attune_choice write_dq;                 /* WRITE_DQ */
    attune_choice use_tma;                  /* USE_TMA */
    attune_choice deterministic;            /* DETERMINISTIC; ON: backward repeats give the same bits */
    attune_choice approximate_tanh; /* APPROXIMATE_TANH; ON: scores take the device's own tanh, within 2^-11 of it */
    char kernel[32];                /* KERNEL: a kernel family by name, "cuda_sm80"; empty = automatic */
} attune_pass_options;

/* `any` applies to both passes; fwd and bwd, the JSON keys' prefixes fwd_ and bwd_, override it in one. */
typedef struct attune_kernel_options {
    uint32_t struct_size;
    attune_pass_options any;
    attune_pass_options fwd;
    attune_pass_options bwd;
} attune_kernel_options;

/*
 * Reads kernel options from a JSON object such as {"BLOCK_M": 64, "fwd_num_stages": 2}. PARSE_ERROR with line and
 * column if the text is not one JSON object; INVALID_ARGUMENT, naming the key, for unknown or repeated keys and for
 * values of the wrong type. UNSUPPORTED if the library was built without JSON.
 */
ATTUNE_API attune_status attune_kernel_options_parse(const char *json, attune_kernel_options *options);

/* How a plan would run. Strings live as long as the library. */
typedef struct attune_plan_choice {
    uint32_t struct_size;
    const char *kernel; /* family and pass, such as "cuda_sm80", "vulkan_subgroup", "cpu" */
    attune_direction direction;
    bool decode;                                     /* the split-KV decode kernel */
    uint32_t block_m, block_n;                       /* forward tile */
    uint32_t block_m1, block_n1, block_m2, block_n2; /* backward tiles */
    uint32_t num_warps, num_stages;
    uint32_t workgroup_invocations;
    uint32_t split_kv;      /* 1 = not split */
    uint32_t shared_memory; /* bytes of one workgroup: the larger pass, in backward */
    uint32_t registers;     /* estimate for one thread; 0 = not estimated */
    uint32_t occupancy;     /* workgroups that one compute unit holds at once */
    uint64_t workspace;     /* bytes that the caller lends at each call; 0 = none */
    bool prescale_qk;
    bool use_tma;
    bool blocks_are_contiguous;
    bool rows_guaranteed_safe;
    bool write_dq;
    bool deterministic; /* the same call gives the same bits */
    bool approximate_tanh;
    /* Calls of at most so many queries, on at least 256 keys, run a decode kernel that the plan has besides
     * (attune_plan_choice_at); 0 = every call runs this one. */
    int64_t short_q_len;
} attune_plan_choice;

/* How an explanation is written. */
typedef enum attune_text_format { ATTUNE_TEXT = 1, ATTUNE_JSON = 2 } attune_text_format;

/*
 * The planner, without a device: pure, the same inputs give the same plan on any machine. options may be NULL.
 * DOES_NOT_FIT if a forced option cannot work: the message names the option, the bytes, the limit and the nearest value
 * that fits. Automatic options never fail for lack of shared memory. Any thread.
 */
ATTUNE_API attune_status attune_plan_choose(const attune_limits *limits, const attune_problem *problem,
                                            const attune_kernel_options *options, attune_plan_choice *choice);
/* The same, explained: what was chosen, why, what was rejected and why, bytes, registers, occupancy. */
ATTUNE_API attune_status attune_plan_choose_explain(const attune_limits *limits, const attune_problem *problem,
                                                    const attune_kernel_options *options, attune_text_format format,
                                                    char *buffer, size_t size, size_t *needed);

/* A kernel that has been chosen and prepared for a problem on a device. */
typedef struct attune_plan attune_plan;

/* Chooses and prepares (compiles, if the backend does) the kernels. May take seconds on a cold cache. */
ATTUNE_API attune_status attune_plan_create(attune_device *device, const attune_problem *problem,
                                            const attune_kernel_options *options, attune_plan **plan);
ATTUNE_API void attune_plan_destroy(attune_plan *plan);
/* For calls of the plan's lengths. */
ATTUNE_API attune_status attune_plan_choice_get(const attune_plan *plan, attune_plan_choice *choice);
/* For calls of these lengths, which alone decide between the plan's kernels. INVALID_ARGUMENT if one is below 1 or past
 * the plan's. */
ATTUNE_API attune_status attune_plan_choice_at(const attune_plan *plan, int64_t q_len, int64_t kv_len,
                                               attune_plan_choice *choice);
ATTUNE_API attune_status attune_plan_explain(const attune_plan *plan, attune_text_format format, char *buffer,
                                             size_t size, size_t *needed);
/* The bytes of workspace that each call in flight needs, whatever the alignment of the memory behind the buffer; 0 =
 * none. */
ATTUNE_API uint64_t attune_plan_workspace_size(const attune_plan *plan);

/* ------------------------------------------------------------------------------------------------------------ packs */

/*
 * Kernels compiled ahead, for machines that have no compiler (CUDA without NVRTC) or must not wait for it. A pack is
 * made with the compiler alone, no device; it serves a plan whose kernels, tiles, types and expressions are the same.
 * Only CUDA has such kernels: the CPU compiles none, Vulkan's driver compiles on its device.
 */
typedef struct attune_pack attune_pack;

/* An empty pack. */
ATTUNE_API attune_status attune_pack_create(attune_instance *instance, attune_pack **pack);
ATTUNE_API void attune_pack_destroy(attune_pack *pack);
/*
 * Chooses as attune_plan_create would on a device with these limits, compiles, and adds the kernels that are not in the
 * pack yet; with a block mask also those of attune_mask_create_tensor. May take seconds. UNAVAILABLE without the
 * compiler, UNSUPPORTED where the backend needs no pack; on failure the pack stays as it was. Any thread, several at
 * once.
 */
ATTUNE_API attune_status attune_pack_add(attune_pack *pack, const attune_limits *limits, const attune_problem *problem,
                                         const attune_kernel_options *options);
/* The kernels in a pack, and their bytes; either output may be NULL. Any thread. */
ATTUNE_API attune_status attune_pack_size(const attune_pack *pack, uint32_t *kernels, uint64_t *bytes);
/* Writes the pack to a file, which is replaced as a whole and keeps its permissions; a link is replaced, a device or
 * pipe is written in place. IO if it cannot be written: what was there stays. */
ATTUNE_API attune_status attune_pack_write(const attune_pack *pack, const char *path);

/*
 * Loads a pack's file: plans made from now on, on any device of the instance, take their kernels from it before they
 * look in the cache or compile. Its memory belongs to the instance and goes with it. Several packs may be loaded; the
 * latest is searched first. IO if the file cannot be read, is no pack or is damaged (a digest covers every byte),
 * UNSUPPORTED if another version of attune made it; then nothing is loaded. As with the library itself, load only what
 * you trust: kernels run on the device. Any thread, also while other threads make plans.
 */
ATTUNE_API attune_status attune_instance_pack_load(attune_instance *instance, const char *path);

/* -------------------------------------------------------------------------------------------------------- execution */

/* Where calls run in order: a stream, or the queue of a Vulkan device. */
typedef struct attune_queue attune_queue;

/* The device's own queue, which lives as long as the device. Calls on one queue run in order. Never NULL for a device.
 */
ATTUNE_API attune_queue *attune_device_queue(attune_device *device);

/* A point in a queue. A plain value: copy it, drop it. Valid as long as the queue. */
typedef struct attune_completion {
    attune_queue *queue;
    uint64_t value;
} attune_completion;

/* Waits until everything up to the completion is done; TIMEOUT after timeout_ns (UINT64_MAX = for ever, 0 = ask only).
 */
ATTUNE_API attune_status attune_completion_wait(attune_completion completion, uint64_t timeout_ns);

/*
 * Classifies the blocks of a tensor [tensor_batch, tensor_heads, q_len, kv_len], any strides, for a mask of
 * attune_mask_create_tensor; the lengths may be shorter than the mask was made for, and calls with the mask are then as
 * short. Launches only: calls on the same queue from now on see the new lists, and read the tensor, which must keep its
 * place and values, as the mask must live, until they are done. Before the first update, and after one that failed on
 * the device, the mask is in no call; one whose arguments are refused leaves it as it was. An update that is captured
 * in a CUDA graph counts once the graph has run; after each run of it the mask has the lengths that were captured. Not
 * to be called while another thread uses the mask. completion may be NULL.
 */
ATTUNE_API attune_status attune_mask_update(attune_mask *mask, attune_queue *queue, const attune_tensor *tensor,
                                            attune_completion *completion);

/* A capture on the device. */
typedef struct attune_capture {
    const char *name;
    attune_tensor tensor;
} attune_capture;

/*
 * A part of the keys and values where it lies: a call over segments computes what it would over their concatenation,
 * without one being made, so that a cache's keys and those of a draft, or the keys of each step of a training that
 * unrolls, need not stand in one tensor. Score expressions see as kv the index in the concatenation and as kv_len its
 * length. A call may have any number of segments up to the plan's, of any lengths up to its kv_len.
 */
typedef struct attune_segment {
    attune_tensor k, v; /* as in a call without segments, of this segment's length */
    /*
     * Of this segment's keys: built with kv_start, the lengths of the segments before it, and kv_total, that of all. A
     * mask that was built without kv_total sees the segment alone. NULL = every pair, if the plan has no block mask.
     */
    const attune_mask *mask;
    attune_tensor d_k, d_v; /* attune_backward: out, as k and v */
} attune_segment;

/* Tensors and values of one forward call. */
typedef struct attune_forward_args {
    uint32_t struct_size;
    attune_tensor q;         /* [batch, heads, q_len, head_dim] of the problem's dtype */
    attune_tensor k;         /* [kv_batch, kv_heads, kv_len, head_dim] of its kv_dtype */
    attune_tensor v;         /* [kv_batch, kv_heads, kv_len, head_dim_v], likewise */
    attune_tensor o;         /* [batch, heads, q_len, head_dim_v] of its o_dtype, out */
    attune_tensor lse;       /* [batch, heads, q_len] f32 (f64 with f64), out; buffer NULL = not wanted */
    attune_tensor row_max;   /* likewise: the largest score of the row after score expression and mask */
    const attune_mask *mask; /* NULL = every pair; uploaded to the device; lengths at least those of q and k */
    /*
     * Of the score expression, which must find every name that it reads. Names that it does not read are ignored, so
     * that one table serves several plans; but a parameter that the mask reads must have the value that the mask was
     * built with.
     */
    const attune_capture *captures;
    uint32_t capture_count;
    const attune_parameter *parameters;
    uint32_t parameter_count;
    attune_buffer
        *workspace; /* at least attune_plan_workspace_size from workspace_offset on; not shared by calls in flight */
    uint64_t workspace_offset;      /* a multiple of 256 */
    double *seconds;                /* not NULL: waits, and receives the device's own time for the launches */
    const attune_segment *segments; /* for a plan with segments, in the order of the concatenation; k, v and mask above
                                       are not read */
    uint32_t segment_count;
} attune_forward_args;

/*
 * Computes, for each batch b, head h and row q, over the kv that the mask allows,
 *
 *     s[kv] = score(scale * dot(q[b,h,q], k[b',h',kv]))       row_max = max s       lse = log(sum exp(s))
 *     o     = sum exp(s - lse) v[b',h',kv]
 *
 * with softmax and accumulation in float32 (float64 for f64), by the online algorithm of Milakov & Gimelshein (2018) in
 * the tiling of Dao et al., FlashAttention (2022). A row that the mask empties, or whose
 * allowed scores are all -inf, gives o = 0, lse = row_max = -inf.
 *
 * The call's lengths choose between the plan's kernels (attune_plan_choice_at): the same call gives the same bits, and
 * the same row in a call of other lengths may differ by rounding.
 *
 * Launches only: no allocation, compilation or wait (unless args->seconds asks for one). Work may go on after return:
 * the tensors and the mask must live until `completion` (which may be NULL) is reached. On the CPU the work is done on
 * return. A plan may be used from several threads at once, with a workspace each. Outputs must overlap neither inputs
 * nor one another, which is not checked.
 */
ATTUNE_API attune_status attune_forward(const attune_plan *plan, attune_queue *queue, const attune_forward_args *args,
                                        attune_completion *completion);

/* Backward: gradients for q, k and v from d_o, with o and lse of the forward pass. */
typedef struct attune_backward_args {
    uint32_t struct_size;
    attune_tensor q, k, v, o;    /* as in forward */
    attune_tensor lse;           /* as forward gave it */
    attune_tensor d_o;           /* as o */
    attune_tensor d_lse;         /* as lse; buffer NULL = the loss does not use LSE */
    attune_tensor d_q, d_k, d_v; /* out, as q, k and v */
    const attune_mask *mask;     /* from here on as in forward, where nothing else is said */
    const attune_capture *captures;
    uint32_t capture_count;
    const attune_capture *capture_gradients; /* out, f32, shaped as the captures of the same name, which are
                                                floating-point; added to, not set */
    uint32_t capture_gradient_count;
    const attune_parameter *parameters;
    uint32_t parameter_count;
    attune_buffer *workspace;
    uint64_t workspace_offset;
    double *seconds;
    const attune_segment *segments; /* as in forward; k, v, mask, d_k and d_v above are not read */
    uint32_t segment_count;
} attune_backward_args;

/*
 * The gradients of a loss whose derivative with respect to o is d_o, and with respect to lse d_lse: with
 * p = exp(s - lse) and delta = dot(o, d_o) - d_lse,
 *
 *     d_v = sum p d_o      ds = p (dot(d_o, v) - delta) score'(...)      d_q = scale sum ds k      d_k = scale sum ds q
 *
 * P is computed again, tile by tile, as in Dao et al., FlashAttention (2022). d_k and d_v sum over the query heads that
 * share them, and over the batch where k and v broadcast. Rows that the mask empties contribute 0. The score
 * expression's derivatives are those of ATTUNE_EXPR_GRADIENT. The same call gives the same bits, whatever the number of
 * threads, where the plan's choice says `deterministic`: with the option of that name always, else not the d_q of
 * cuda_sm90a and cuda_sm80_atomic, nor, without a block mask, the d_k and d_v of cuda_sm90a.
 *
 * Otherwise as attune_forward, for a plan whose direction is ATTUNE_BACKWARD. UNSUPPORTED, when the plan is made, on
 * backends without a backward pass: the CPU, Vulkan and CUDA have one.
 */
ATTUNE_API attune_status attune_backward(const attune_plan *plan, attune_queue *queue, const attune_backward_args *args,
                                         attune_completion *completion);

/* ---------------------------------------------------------------------------------------------------------- merging */

/* Merges results over parts of the keys into the result over all of them, and takes gradients apart again: one for
 * every type and shape on its device. */
typedef struct attune_merger attune_merger;

/* Prepares (compiles, if the backend does). UNSUPPORTED on backends that cannot merge. */
ATTUNE_API attune_status attune_merger_create(attune_device *device, attune_merger **merger);
ATTUNE_API void attune_merger_destroy(attune_merger *merger);
/* The bytes of workspace that attune_merge, or attune_merge_backward, needs for an o of this dtype and size (buffer and
 * strides are not read) and as many parts; UINT64_MAX where no buffer holds as many. */
ATTUNE_API uint64_t attune_merger_workspace_size(const attune_merger *merger, const attune_tensor *o,
                                                 uint32_t part_count);

/* One of the results that are merged. */
typedef struct attune_merge_part {
    attune_tensor o;     /* [batch, heads, q_len, head_dim_v], each below 2^31: the dtype of the merged o, or f32 */
    attune_tensor lse;   /* [batch, heads, q_len] f32 (f64 with f64) */
    attune_tensor d_o;   /* attune_merge_backward: out, as o; buffer NULL = not wanted */
    attune_tensor d_lse; /* likewise, as lse */
} attune_merge_part;

/* Tensors of one merging call. */
typedef struct attune_merge_args {
    uint32_t struct_size;
    const attune_merge_part
        *parts; /* at least 1, any number; their results do not depend on the order but by rounding */
    uint32_t part_count;
    attune_tensor o;           /* out; may be the o of a part, in the same view */
    attune_tensor lse;         /* out; may be the lse of a part, in the same view; buffer NULL = not wanted */
    attune_buffer *workspace;  /* at least attune_merger_workspace_size from workspace_offset on */
    uint64_t workspace_offset; /* a multiple of 256 */
    double *seconds;           /* as in forward */
} attune_merge_args;

/*
 * Computes, for each row,
 *
 *     lse = log(sum exp(lse_i))     o = sum exp(lse_i - lse) o_i
 *
 * which for results over parts of the keys, as attune_forward gives them, is the result over all. A part whose lse is
 * -inf contributes nothing, whatever its o holds; where all are, o = 0 and lse = -inf. A NaN among the lse, or one of
 * +inf, makes the row NaN. Launches only, as attune_forward; otherwise than stated above outputs and inputs must not
 * overlap.
 */
ATTUNE_API attune_status attune_merge(const attune_merger *merger, attune_queue *queue, const attune_merge_args *args,
                                      attune_completion *completion);

/* Tensors of one call that takes gradients apart. */
typedef struct attune_merge_backward_args {
    uint32_t struct_size;
    const attune_merge_part *parts; /* o and lse are in, d_o and d_lse out */
    uint32_t part_count;
    attune_tensor o, lse; /* as attune_merge gave them */
    attune_tensor d_o;    /* as o */
    attune_tensor d_lse;  /* as lse; buffer NULL = the loss does not use the merged LSE */
    attune_buffer *workspace;
    uint64_t workspace_offset;
    double *seconds;
} attune_merge_backward_args;

/*
 * The gradients of the parts: with w_i = exp(lse_i - lse),
 *
 *     d_o_i = w_i d_o     d_lse_i = w_i (dot(d_o, o_i - o) + d_lse)
 *
 * and 0 for a part whose lse is -inf. What it gives as d_lse_i is what attune_backward takes as d_lse.
 */
ATTUNE_API attune_status attune_merge_backward(const attune_merger *merger, attune_queue *queue,
                                               const attune_merge_backward_args *args, attune_completion *completion);

#ifdef __cplusplus
}
#endif

#endif /* ATTUNE_ATTUNE_H */
