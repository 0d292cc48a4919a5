/* SPDX-License-Identifier: MIT */
/*
 * attune: programmable attention on any compute device.
 *
 *     O = softmax(score(scale * Q K^T)) V      over the pairs (q, kv) that the mask allows
 *
 * The mask and the score modification are one-line expressions (docs/expressions.md). The flow of one call:
 *
 *     text -> attune_expr -> attune_mask (blocks to compute) -> attune_plan (kernel, tiles, memory)
 *          -> attune_forward (launches only)
 *
 * Nothing after the plan allocates, compiles or waits. README.md has a first program, docs/guide one for each task.
 *
 * Sections: version and status, instance, devices, buffers, expressions, block masks, plans, packs, execution (forward,
 * caches, backward), merging. Other headers: cuda.h, vulkan.h and opencl.h lend an engine's own device, queue and
 * memory; distributed.h is attention over several devices, with transports in mpi.h, threads.h and cuda_ranks.h.
 *
 * Errors. Every function that can fail returns attune_status. On failure the outputs are unchanged, except that a
 * created handle is set to NULL; attune_last_error() returns the full message of the calling thread. The library never
 * aborts, exits or prints.
 *
 * Descriptions are plain structs whose first field is `struct_size`. The caller sets it to sizeof the struct, so that a
 * newer library can tell which fields the caller's header has. A field that is zero takes the default stated in its
 * comment.
 *
 * Ownership. A handle made by *_create, *_open or *_wrap belongs to the caller, who releases it with *_destroy, which
 * accepts NULL. A handle holds references to the objects that it was made from, so handles may be destroyed in any
 * order. Strings and arrays passed in are copied before the call returns, unless stated otherwise.
 *
 * Threads. Distinct objects may be used from distinct threads. attune_instance, attune_device, attune_expr, attune_mask
 * and attune_plan do not change after creation and may be shared between threads, except where stated otherwise. An
 * object must not be destroyed while another thread uses it.
 *
 * Stack. A thread that calls attune needs 64 KiB of stack for expressions, masks, plans and all work of the CPU device,
 * plus its thread-local variables and the stack that the instance's callbacks use. Drivers and NVRTC do not document
 * how much stack they need: open Vulkan and CUDA devices and create their plans on a thread with the system's default
 * stack size.
 *
 * fork. Objects made before a fork belong to the parent. The child must neither use nor destroy them, because their
 * threads and driver state do not exist in the child. It may create an instance of its own.
 *
 * Text out. Functions that write text take (buffer, size, needed). As with snprintf, at most size bytes are written,
 * including a NUL. *needed, if not NULL, receives the bytes that the whole text needs, including the NUL. buffer may be
 * NULL when size is 0.
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

#if defined(_WIN32) && defined(ATTUNE_BUILD_DLL)
#define ATTUNE_API __declspec(dllexport)
#elif defined(_WIN32)
#define ATTUNE_API
#else
#define ATTUNE_API __attribute__((visibility("default"))) /* exported by the library */
#endif

/* -------------------------------------------------------------------------------------------------- version, status */

/* The version of this header. The library that is loaded may be newer (attune_version). */
#define ATTUNE_VERSION_MAJOR 0
#define ATTUNE_VERSION_MINOR 1
#define ATTUNE_VERSION_PATCH 0

/* Returns major * 1000000 + minor * 1000 + patch of the loaded library. Any thread. */
ATTUNE_API uint32_t attune_version(void);

/* The numbers are stable: a number never changes its meaning. */
typedef enum attune_status {
    ATTUNE_OK = 0,
    ATTUNE_INVALID_ARGUMENT = 1,     /* an argument breaks the contract of the function */
    ATTUNE_UNSUPPORTED = 2,          /* valid, but not supported by this device or version */
    ATTUNE_UNAVAILABLE = 3,          /* the device or its driver was not found */
    ATTUNE_OUT_OF_HOST_MEMORY = 4,   /* the allocator of the instance returned NULL */
    ATTUNE_OUT_OF_DEVICE_MEMORY = 5, /* the device has too little free memory */
    ATTUNE_DEVICE_LOST = 6,          /* the device failed; every later call on it returns this status */
    ATTUNE_COMPILE_FAILED = 7,       /* the driver or the run-time compiler rejected a kernel */
    ATTUNE_PARSE_ERROR = 8,          /* an expression or JSON text is invalid; the message has line and column */
    ATTUNE_DOES_NOT_FIT = 9,         /* a forced option exceeds a limit of the device; the message has both figures */
    ATTUNE_TIMEOUT = 10,             /* the time of a wait expired; the work continues */
    ATTUNE_IO = 11,                  /* a file could not be read or written */
    ATTUNE_INTERNAL = 12,            /* a defect in attune: please report it */
    ATTUNE_CANCELLED = 13            /* stopped by the caller's callback, or at a limit that the caller set */
} attune_status;

/*
 * Returns the name of a status, such as "ATTUNE_OK", or "ATTUNE_UNKNOWN" for any other number. Never NULL. Any thread.
 */
ATTUNE_API const char *attune_status_string(attune_status status);

/*
 * Returns the message of the last call that failed in the calling thread: the error, the value, the limit and the
 * remedy. Empty before the first failure; a successful call does not clear it. The text stays valid until the thread's
 * next attune call. Never NULL. Any thread.
 */
ATTUNE_API const char *attune_last_error(void);

/* --------------------------------------------------------------------------------------------------------- instance */

/* The object that all others are created from, directly or indirectly. */
typedef struct attune_instance attune_instance;

/* Severity of a log message, the most severe first. */
typedef enum attune_log_level {
    ATTUNE_LOG_ERROR = 1,
    ATTUNE_LOG_WARNING = 2,
    ATTUNE_LOG_INFO = 3,
    ATTUNE_LOG_DEBUG = 4
} attune_log_level;

/* Receives one complete line, without a newline. Called on the thread that called attune; must not call attune. */
typedef void (*attune_log_fn)(void *user, attune_log_level level, const char *message);

/*
 * Host memory. alloc returns at least `size` bytes aligned to `alignment` (a power of two, at most 4,096), or NULL;
 * release frees memory that alloc returned, never NULL. Both are called on the thread that called attune, never on a
 * thread that attune created. Set both or neither.
 */
typedef struct attune_allocator {
    void *(*alloc)(void *user, size_t size, size_t alignment);
    void (*release)(void *user, void *memory);
    void *user;
} attune_allocator;

/*
 * The engine's own threads. run calls body(context, index) exactly once for each index below count, on any threads, and
 * returns when all of these calls have returned. Indices do not wait for one another, so that any number of threads may
 * execute them, including the calling thread alone. run is called on the thread that called attune, with a count of 2
 * to cpu_threads, possibly several times in one call of attune. body never calls run, attune, the allocator or the log.
 * If several threads call attune, run is called by several threads. run must not throw. If it omits an index, results
 * are undefined.
 */
typedef struct attune_parallel_for {
    void (*run)(void *user, uint32_t count, void (*body)(void *context, uint32_t index), void *context);
    void *user;
} attune_parallel_for;

/* Parameters of attune_instance_create. */
typedef struct attune_instance_desc {
    uint32_t struct_size;
    uint32_t cpu_threads; /* threads of the CPU device, including the calling thread; 0 = the cores that this process
                             may use */
    attune_log_fn log;    /* NULL = no log */
    void *log_user;       /* passed to log */
    attune_log_level log_level; /* the least severe level that is logged; 0 = ATTUNE_LOG_WARNING */
    attune_allocator allocator; /* zero = aligned_alloc and free */
    /*
     * Folder of the kernel cache, which keeps compiled kernels between runs. It is created when first needed, may be
     * shared by any number of processes, and is limited to 256 MiB by removing the least recently used kernels. NULL =
     * $XDG_CACHE_HOME/attune, or $HOME/.cache/attune where that is not set (neither is read in a set-user-ID or
     * set-group-ID program); "" = no cache. A folder that cannot be used, that belongs to another user or that others
     * may write to is ignored with a warning in the log: plans are then only slower to create.
     */
    const char *cache_folder;
    /*
     * Threads that compile the kernels of one plan in parallel (CUDA, Vulkan), including the calling thread. They are
     * started when more than one kernel of a plan is neither in a pack nor in the cache, and have ended when
     * attune_plan_create returns. 0 or 1 = only the calling thread; at most 64.
     */
    uint32_t compile_threads;
    /* Runs the parallel loops of the CPU device, which then starts no threads; cpu_threads is the largest count that it
     * is called with. run NULL = the device starts its own threads. */
    attune_parallel_for parallel_for;
} attune_instance_desc;

/* Creates an instance. desc may be NULL: all defaults. Opens no driver and starts no thread. */
ATTUNE_API attune_status attune_instance_create(const attune_instance_desc *desc, attune_instance **instance);
ATTUNE_API void attune_instance_destroy(attune_instance *instance);

/* ---------------------------------------------------------------------------------------------------------- devices */

/* Kinds of devices. */
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
    ATTUNE_F64 = 4, /* CPU only: computes in float64 */
    ATTUNE_I32 = 5,
    ATTUNE_I64 = 6,  /* captures, read as i32, and slots of attune_append */
    ATTUNE_U8 = 7,   /* captures only; read as i32 */
    ATTUNE_BOOL = 8, /* captures only; one byte, non-zero is true */
    /* Keys and values of a cache (attune_cache) only: */
    ATTUNE_F8E4M3 = 9, /* OCP FP8: no infinity */
    ATTUNE_F8E5M2 = 10,
    ATTUNE_I8 = 11,
    ATTUNE_Q8_0 = 12,  /* ggml's blocks of 32: an f16 scale, 32 i8 */
    ATTUNE_Q4_0 = 13,  /* ggml's blocks of 32: an f16 scale, 16 bytes of two values plus 8 */
    ATTUNE_MXFP4 = 14, /* no kernel reads it: UNSUPPORTED */
    ATTUNE_NVFP4 = 15  /* likewise */
} attune_dtype;

/* Returns the bytes of one element, or of one block; 0 for a number that is not a dtype. Any thread. */
ATTUNE_API size_t attune_dtype_size(attune_dtype dtype);
/* Returns the elements of a block: 32 for Q8_0, Q4_0 and MXFP4, 64 for NVFP4, otherwise 1. Any thread. */
ATTUNE_API uint32_t attune_dtype_block(attune_dtype dtype);
/* Returns "f32", "bf16", ..., or "?" for a number that is not a dtype. Never NULL. Any thread. */
ATTUNE_API const char *attune_dtype_string(attune_dtype dtype);

/* Matrix units, as bits of attune_limits.matrix. */
#define ATTUNE_MATRIX_MMA_SYNC UINT32_C(1)  /* CUDA mma.sync with cp.async: sm80 and later */
#define ATTUNE_MATRIX_WGMMA    UINT32_C(2)  /* CUDA wgmma with TMA: sm90a only */
#define ATTUNE_MATRIX_TCGEN05  UINT32_C(4)  /* CUDA tcgen05: sm100a only */
#define ATTUNE_MATRIX_COOPMAT  UINT32_C(8)  /* VK_KHR_cooperative_matrix */
#define ATTUNE_MATRIX_COOPMAT2 UINT32_C(16) /* VK_NV_cooperative_matrix2, workgroup scope */
#define ATTUNE_MATRIX_CPU_BF16 UINT32_C(32) /* CPU: products of pairs of bf16 (AVX512-BF16, Arm's BFDOT) */
#define ATTUNE_MATRIX_AMX      UINT32_C(64) /* CPU: AMX-BF16, which the system lets this process use */
/* No matrix unit: the automatic choice may take kernels that have never run on hardware, which KERNEL alone selects
 * otherwise. A CUDA device has it where the environment has ATTUNE_UNTRIED_KERNELS=1 when it is described or opened,
 * which is not read in a set-user-ID or set-group-ID program. */
#define ATTUNE_MATRIX_UNTRIED UINT32_C(128)

/* Fragment layouts, the values of attune_limits.fragment_layout: which lane holds which element of a cooperative
 * matrix. */
#define ATTUNE_FRAGMENT_QUADS                                                                                          \
    1 /* 16x16, as PTX mma: four lanes hold two rows, two adjacent of every eight columns each */
#define ATTUNE_FRAGMENT_COLUMNS 2 /* each lane holds one column */

/* The limits and features of a device: all that the planner reads of it. A backend fills it in for a real device;
 * attune_profile_get has it for known devices that need not be present. */
typedef struct attune_limits {
    uint32_t struct_size;
    attune_backend backend;
    uint32_t architecture;       /* CUDA: compute capability, 86 for sm_86; 0 elsewhere */
    uint32_t compute_units;      /* SMs, CUs, Xe cores, CPU threads */
    uint32_t shared_memory;      /* bytes that one workgroup may use, including opt-in memory; CPU: L2 bytes per core */
    uint32_t shared_memory_unit; /* bytes of a compute unit, for all of its workgroups; 0 = shared_memory */
    uint32_t shared_memory_reserved; /* bytes that the driver reserves in each workgroup */
    uint32_t workgroup_invocations;  /* threads in a workgroup; CPU: 1 */
    uint32_t unit_invocations;       /* resident threads of one compute unit; 0 = workgroup_invocations */
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
    bool subgroup_operations; /* reductions and shuffles work */
    bool f64;                 /* float64 kernels (CPU) */
    uint64_t storage_range;   /* bytes of one bound storage buffer; 0 = not limited */
    uint64_t memory;          /* bytes of device memory; 0 = unknown */
    bool host;                /* Vulkan, OpenCL: the driver runs kernels on the CPU, with a SIMD vector as the subgroup;
                                OpenCL without subgroup_operations: a vector of one work-item */
    uint32_t fragment_layout; /* ATTUNE_FRAGMENT_*, of cooperative matrices; 0 = unknown */
} attune_limits;

/* A device, or the reason why a backend has none. */
typedef struct attune_device_info {
    uint32_t struct_size;
    attune_backend backend;
    bool available;
    char id[32];      /* the id for attune_device_open: "cpu", "vulkan:0"; the backend's name alone if unavailable */
    char name[128];   /* "AMD EPYC 7763", "NVIDIA H200" */
    char driver[128]; /* driver name and version; empty if none */
    char uuid[40];    /* hexadecimal; empty if the backend has none */
    char reason[256]; /* why it is unavailable; empty if it is available */
    attune_limits limits;
} attune_device_info;

/* Enumerate the devices: one entry for each device, and one for each backend that has none, with the reason. The CPU is
 * always entry 0. attune_device_describe fails with INVALID_ARGUMENT if index is not below the count. */
ATTUNE_API attune_status attune_device_count(attune_instance *instance, uint32_t *count);
ATTUNE_API attune_status attune_device_describe(attune_instance *instance, uint32_t index, attune_device_info *info);

/* An open device. */
typedef struct attune_device attune_device;

/*
 * Opens a device by its id ("cpu", "vulkan:0", "cuda:1"; a backend's name alone is its device 0). UNAVAILABLE, with the
 * reason, if there is no such device. "cuda:0@a6000" replaces the device's limits by those of a profile: plans are then
 * the same as for that smaller device, except for the architecture that they are compiled for. INVALID_ARGUMENT if the
 * profile is for another backend or exceeds the device's limits. The CPU device starts its worker threads here and
 * nowhere else; they sleep between calls. It starts none if the instance has a parallel_for.
 */
ATTUNE_API attune_status attune_device_open(attune_instance *instance, const char *id, attune_device **device);
ATTUNE_API void attune_device_destroy(attune_device *device);
/* Describes an open device. */
ATTUNE_API attune_status attune_device_info_get(const attune_device *device, attune_device_info *info);

/*
 * Measures the peaks that `attune bench` relates its figures to. flops: operations per second of independent fused
 * multiply-adds (two operations each), on the units that the backend's kernels of this dtype use. These are matrix
 * units with f32 accumulation for f16 and bf16 on CUDA and, where the device has cooperative matrices of the type
 * (limits.bf16), on Vulkan; else Vulkan computes bf16 in f32, OpenCL every type. On the CPU they are products of bf16
 * where limits.matrix has them, of which f16 with AMX takes three or four each. bandwidth: bytes per second of a large
 * copy, read plus written. Takes about a second, uses the whole device, allocates. Either output may be NULL.
 */
ATTUNE_API attune_status attune_device_measure(attune_device *device, attune_dtype dtype, double *flops,
                                               double *bandwidth);

/* A known device's limits. name and description live as long as the library. */
typedef struct attune_profile {
    uint32_t struct_size;
    const char *name;        /* "a6000", "h200", "v3d" */
    const char *description; /* "NVIDIA RTX A6000 (sm_86)" */
    const char *source;      /* source of the figures */
    attune_limits limits;
} attune_profile;

/* Enumerate the profiles. INVALID_ARGUMENT if index is not below the count. Any thread. */
ATTUNE_API uint32_t attune_profile_count(void);
ATTUNE_API attune_status attune_profile_get(uint32_t index, attune_profile *profile);
/*
 * Finds a profile by its name, ignoring case. INVALID_ARGUMENT, with a list of the names, if there is none. Any thread.
 */
ATTUNE_API attune_status attune_profile_find(const char *name, attune_profile *profile);

/* ---------------------------------------------------------------------------------------------------------- buffers */

/* Memory of one device. */
typedef struct attune_buffer attune_buffer;

/* Allocates `size` bytes (at least 1) of device memory, contents undefined. */
ATTUNE_API attune_status attune_buffer_create(attune_device *device, uint64_t size, attune_buffer **buffer);
/*
 * Wraps host memory, which the CPU device reads and writes in place. The caller keeps ownership of the memory, which
 * must outlive the buffer. Of a tensor's buffer, calls access the bytes that the tensor describes and no others, so
 * that one buffer may span all addresses; of a workspace's they may use every byte behind workspace_offset. UNSUPPORTED
 * on other devices, where the memory is wrapped by attune_vulkan_buffer_wrap (vulkan.h), attune_cuda_buffer_wrap
 * (cuda.h) or attune_opencl_buffer_wrap (opencl.h).
 */
ATTUNE_API attune_status attune_buffer_wrap(attune_device *device, void *memory, uint64_t size, attune_buffer **buffer);
ATTUNE_API void attune_buffer_destroy(attune_buffer *buffer);
ATTUNE_API uint64_t attune_buffer_size(const attune_buffer *buffer);
/* Copy to or from host memory, and return when the copy is complete. The range must be inside the buffer. One thread at
 * a time for each buffer. */
ATTUNE_API attune_status attune_buffer_write(attune_buffer *buffer, uint64_t offset, const void *data, uint64_t size);
ATTUNE_API attune_status attune_buffer_read(const attune_buffer *buffer, uint64_t offset, void *data, uint64_t size);

/* The most dimensions of a tensor or an array. */
#define ATTUNE_MAX_RANK 4

/*
 * A view of a buffer. size and stride are in elements, the outermost dimension first. Element (i, j, ...) is at byte
 * offset + dtype size * (i * stride[0] + j * stride[1] + ...). Strides of inputs may have any value, including 0 and
 * negative ones, as long as every element is inside the buffer. The last dimension of q, k, v and o must be contiguous
 * (stride 1): a transposed V, whose keys are contiguous, is rejected. Elements of outputs must not overlap one another.
 * All strides 0 = contiguous. offset is in bytes, a multiple of the element size; in wrapped host memory the address of
 * the first element is one too. For types in blocks, size counts elements, stride counts blocks, and offset is a
 * multiple of 2; the last dimension has whole blocks and is contiguous.
 */
typedef struct attune_tensor {
    attune_buffer *buffer;
    uint64_t offset;
    attune_dtype dtype;
    uint32_t rank;
    int64_t size[ATTUNE_MAX_RANK];
    int64_t stride[ATTUNE_MAX_RANK];
} attune_tensor;

/* The same in host memory; data is aligned to the element size. */
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

/* The two kinds of expressions. */
typedef enum attune_expr_kind {
    ATTUNE_EXPR_MASK = 1, /* bool: whether the pair is allowed; variables b h q kv h_kv q_len kv_len row */
    ATTUNE_EXPR_SCORE = 2 /* f32: the modified score; the same variables, and `score`, the scaled dot product */
} attune_expr_kind;

/* The two kinds of names that a caller declares. */
typedef enum attune_symbol_kind {
    ATTUNE_SYMBOL_CAPTURE = 1,  /* an array, read as name[i, j], with one index for each dimension */
    ATTUNE_SYMBOL_PARAMETER = 2 /* a scalar (ATTUNE_I32 or ATTUNE_F32): of a score given at each call, of a mask when it
                                   is built, over a cache both at each call; another value recompiles nothing */
} attune_symbol_kind;

/* A name that an expression may use. */
typedef struct attune_symbol {
    /* [A-Za-z_][A-Za-z0-9_]*, at most 63 characters; not a variable, function, preset or word of the language, nor a
     * symbol that attune adds for segments and ranks (segment_kv_start, segment_kv_total, gather_q, gather_kv,
     * gather_q_len, gather_kv_len) */
    const char *name;
    attune_symbol_kind kind;
    attune_dtype dtype;
    uint32_t rank; /* captures: 1 to 4, or 0 = as in the first use; parameters: 0 */
} attune_symbol;

#define ATTUNE_EXPR_MAX_LENGTH  4096 /* bytes of text */
#define ATTUNE_EXPR_MAX_DEPTH   64   /* nesting */
#define ATTUNE_EXPR_MAX_NODES   1024 /* nodes of the IR, with presets expanded */
#define ATTUNE_EXPR_MAX_SYMBOLS 16   /* captures and parameters of one expression */

/* Parses, type-checks and simplifies an expression. PARSE_ERROR, with line, column, a caret and what was expected, if
 * the text is invalid. Symbols that the text does not use are ignored. docs/expressions.md describes the language. */
ATTUNE_API attune_status attune_expr_create(attune_instance *instance, attune_expr_kind kind, const char *text,
                                            const attune_symbol *symbols, uint32_t symbol_count, attune_expr **expr);
ATTUNE_API void attune_expr_destroy(attune_expr *expr);

/* The symbols that the expression uses, in order of first use. symbol->name is valid as long as the expression. */
ATTUNE_API uint32_t attune_expr_symbol_count(const attune_expr *expr);
ATTUNE_API attune_status attune_expr_symbol_get(const attune_expr *expr, uint32_t index, attune_symbol *symbol);

/* The 128-bit hash of the simplified IR: the same on every machine, and the same for texts that simplify to the same
 * IR. Kernel caches use it in their keys. */
ATTUNE_API void attune_expr_hash(const attune_expr *expr, uint64_t hash[2]);

/* Output formats of attune_expr_print. */
typedef enum attune_expr_format {
    ATTUNE_EXPR_TEXT = 1, /* the language itself, from the simplified IR; parses to the same IR */
    ATTUNE_EXPR_IR = 2,   /* one node per line: number, type, operation, operands */
    ATTUNE_EXPR_C = 3,    /* a C99 function with its prelude, as in the CUDA kernels */
    /*
     * The derivatives of a score expression, one per line: with respect to score and to each element of a
     * floating-point capture that it reads ("d slopes[h] = kv - q"). INVALID_ARGUMENT for masks; UNSUPPORTED above
     * ATTUNE_EXPR_MAX_NODES nodes.
     */
    ATTUNE_EXPR_GRADIENT = 4
} attune_expr_format;

/* Writes an expression as text. Any thread. */
ATTUNE_API attune_status attune_expr_print(const attune_expr *expr, attune_expr_format format, char *buffer,
                                           size_t size, size_t *needed);

/* A preset: an expression with parameters, written in the language. All strings are static. */
typedef struct attune_preset {
    uint32_t struct_size;
    attune_expr_kind kind;
    const char *signature;   /* "window(n)" */
    const char *text;        /* "q >= kv && q - kv < n" */
    const char *description; /* one line */
} attune_preset;

/* Enumerate the presets. INVALID_ARGUMENT if index is not below the count. Any thread. */
ATTUNE_API uint32_t attune_preset_count(void);
ATTUNE_API attune_status attune_preset_get(uint32_t index, attune_preset *preset);

/* A capture in host memory. */
typedef struct attune_host_capture {
    const char *name;
    attune_array array;
} attune_host_capture;

/* A parameter's value (an integer if the parameter is i32). */
typedef struct attune_parameter {
    const char *name;
    double value;
} attune_parameter;

/* The values of the variables for attune_expr_evaluate; row is b * q_len + q. */
typedef struct attune_point {
    int32_t b, h, q, kv, h_kv, q_len, kv_len;
    float score;
} attune_point;

/*
 * Evaluates an expression at one point, with captures in host memory. This is the reference for every kernel. A mask
 * evaluates to 0 or 1. Names that the expression does not use are ignored. A name that it uses and that is missing is
 * an error, and so is an i64 value that is outside the range of i32.
 */
ATTUNE_API attune_status attune_expr_evaluate(const attune_expr *expr, const attune_point *point,
                                              const attune_host_capture *captures, uint32_t capture_count,
                                              const attune_parameter *parameters, uint32_t parameter_count,
                                              float *value);

/*
 * Evaluates an expression for `count` consecutive keys of a row: first->kv, first->kv + 1, ...; the other variables are
 * those of `first`, whose score is not read. A mask writes 0 or 1 to values. A score expression reads the scaled
 * products from values and replaces them. precision is ATTUNE_F32, as in the kernels, or ATTUNE_F64, where arithmetic
 * and literals are float64 and f32 captures and parameters are converted exactly. Masks are always evaluated in f32,
 * including their literals. Allocates.
 */
ATTUNE_API attune_status attune_expr_evaluate_row(const attune_expr *expr, attune_dtype precision,
                                                  const attune_point *first, size_t count,
                                                  const attune_host_capture *captures, uint32_t capture_count,
                                                  const attune_parameter *parameters, uint32_t parameter_count,
                                                  double *values);

/* ------------------------------------------------------------------------------------------------------ block masks */

/*
 * A block mask, FlexAttention's BlockMask: a classification of the blocks of the q x kv plane. A block is empty (in no
 * list), full (every pair is allowed; kernels skip the expression) or partial (kernels evaluate the expression). Only
 * pairs inside q_len x kv_len count.
 *
 * A mask holds its expression and copies of the captures and parameters that it was built with, so that kernels
 * evaluate partial blocks with the same values. Other values need another mask: a call that passes a parameter of the
 * mask with a different value fails. The captures of a call are those of the score expression only, even if the mask
 * reads a capture of the same name.
 */
typedef struct attune_mask attune_mask;

/* Called every few milliseconds on the thread that called attune, with the completed share of the work, which rises
 * from 0 to 1. Return 0 to continue, any other value to stop. Must not call attune. */
typedef int (*attune_progress_fn)(void *user, double done);

/* Parameters of a mask. */
typedef struct attune_mask_desc {
    uint32_t struct_size;
    uint32_t q_block;  /* rows of a block, a multiple of 16 from 16 to 1,024; 0 = 128 */
    uint32_t kv_block; /* columns of a block, likewise; 0 = 128 */
    /*
     * The shape of the calls. A mask whose expression reads b is for calls of this batch only; one that reads h or
     * h_kv, of this number of heads; one that reads h_kv, of this number of kv_heads. Any other mask may be used with
     * any number.
     */
    int64_t batch;    /* 0 = 1 */
    int64_t heads;    /* query heads; 0 = 1 */
    int64_t kv_heads; /* divides heads; 0 = heads */
    int64_t q_len;    /* at least 1, below 2^31 */
    int64_t kv_len;   /* at least 1, below 2^31 */
    /*
     * For a mask of one segment of the keys (attune_segment): its keys are [kv_start, kv_start + kv_len) of kv_total
     * keys, and kv and kv_len in the expression refer to all kv_total keys. kv_total 0 = no segments; kv_start must
     * then be 0.
     */
    int64_t kv_start;
    int64_t kv_total;
    /*
     * Limits for attune_mask_create, whose time depends on the expression; other functions that take a description
     * reject them. max_work limits untrusted expressions: the largest number of work units, which are counted in the
     * same way on every machine. A unit is a node of the simplified expression evaluated at one pair; a node's bounds
     * over a part of the plane, unless bounds over a larger part have already decided it; a capture element that the
     * bounds read; or a list entry that is written. About 10^8 units take a second. A stop by either limit returns
     * CANCELLED.
     */
    attune_progress_fn progress; /* NULL = none */
    void *progress_user;         /* passed to progress */
    uint64_t max_work;           /* 0 = no limit */
} attune_mask_desc;

/*
 * Builds a mask from a mask expression by interval analysis over a quadtree of blocks. The result is the same as from
 * evaluating every element, at a cost near the number of boundary blocks. Captures are host arrays; the log has a
 * warning if one is shorter than the range of a variable that is its whole index, as in doc[kv]. If the expression does
 * not use b (h), all batches (heads) share one list. CANCELLED when desc->progress or desc->max_work stops it.
 */
ATTUNE_API attune_status attune_mask_create(attune_instance *instance, const attune_mask_desc *desc,
                                            const attune_expr *expr, const attune_host_capture *captures,
                                            uint32_t capture_count, const attune_parameter *parameters,
                                            uint32_t parameter_count, attune_mask **mask);

/*
 * The block lists. There are rows = batch * heads * q_blocks of them (batch and heads as stored: 1 where they
 * broadcast), ordered by batch, head and block row. List r has kv_num_blocks[r] block columns in ascending order, which
 * begin at kv_indices[kv_offsets[r]]. The kv_* lists have the partial blocks, the full_kv_* lists the full ones. q_*
 * and full_q_* are the transposes: batch * heads * kv_blocks lists of block rows. Each offsets array has one entry more
 * than there are lists.
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
 * Builds a mask from lists, as FlexAttention's from_kv_blocks. Only struct_size, batch, heads and the kv_* and
 * full_kv_* arrays of `lists` are read; the transposes are computed. offsets may be NULL: the lists are then
 * contiguous. full_kv_num_blocks may be NULL: no block is full. lists->batch and lists->heads are 1 or the
 * description's; a mask with lists for each batch (head) is for calls of the description's batch (heads) only. Indices
 * must be ascending and in range, and a block must not be in both lists. Partial blocks evaluate expr, which may be
 * NULL if there are none.
 */
ATTUNE_API attune_status attune_mask_create_lists(attune_instance *instance, const attune_mask_desc *desc,
                                                  const attune_mask_lists *lists, const attune_expr *expr,
                                                  const attune_host_capture *captures, uint32_t capture_count,
                                                  const attune_parameter *parameters, uint32_t parameter_count,
                                                  attune_mask **mask);

/* Builds a mask from a dense array [batch or 1, heads or 1, q_len, kv_len] of ATTUNE_BOOL or ATTUNE_U8, where non-zero
 * allows the pair. The array is copied; partial blocks read the copy. A plan is for masks whose arrays have 1 batch
 * (head) if its own has, else for those of several. */
ATTUNE_API attune_status attune_mask_create_dense(attune_instance *instance, const attune_mask_desc *desc,
                                                  const attune_array *dense, attune_mask **mask);
/*
 * Creates a mask whose lists are computed on the device from a tensor there: the dense mask, or the additive bias, that
 * an engine computes in each step. The mask is created once, for the longest lengths (desc). attune_mask_update then
 * reads the tensor and writes the lists by kernel launches alone. Kernels skip empty blocks and read no mask in full
 * ones.
 *
 * dtype is the tensor's: ATTUNE_BOOL or ATTUNE_U8, where non-zero allows the pair; or ATTUNE_F32, F16 or BF16, where
 * negative infinity forbids the pair and every other value allows it. The mask does not add a bias to the score: use
 * the score expression "score + bias[b, h, q, kv]" with the same tensor as a capture. A tensor of 0 and negative
 * infinity needs no score expression.
 *
 * tensor_batch and tensor_heads are the description's batch and heads, or 1 to broadcast, which plans distinguish as
 * those of dense masks. desc->kv_total must be 0. The lists are in device memory: functions that read a mask on the
 * host, combine it or upload it to another device return UNSUPPORTED. Allocates for the largest number of blocks, and
 * may compile.
 */
ATTUNE_API attune_status attune_mask_create_tensor(attune_device *device, const attune_mask_desc *desc,
                                                   attune_dtype dtype, int64_t tensor_batch, int64_t tensor_heads,
                                                   attune_mask **mask);
ATTUNE_API void attune_mask_destroy(attune_mask *mask);

/* Returns the lists of a mask; the arrays are valid as long as the mask. */
ATTUNE_API attune_status attune_mask_lists_get(const attune_mask *mask, attune_mask_lists *lists);

/*
 * A part of a mask: batches [batch0, batch0 + batch), heads likewise, and q_blocks block rows from q_block0 on (0 = to
 * the end). b, h and q in the expression remain those of the whole mask. A broadcast batch or head remains broadcast.
 */
typedef struct attune_mask_range {
    uint32_t struct_size;
    int64_t batch0, batch; /* batch 0 = to the end */
    int64_t head0, heads;  /* heads 0 = to the end */
    int64_t q_block0, q_blocks;
} attune_mask_range;

/* Creates a mask from a part of another. */
ATTUNE_API attune_status attune_mask_slice(const attune_mask *mask, const attune_mask_range *range,
                                           attune_mask **slice);

/* Limits of the work of one call, as the fields of the same names of attune_mask_desc. */
typedef struct attune_mask_work {
    uint32_t struct_size;
    attune_progress_fn progress; /* NULL = none */
    void *progress_user;
    uint64_t max_work; /* units; 0 = no limit */
} attune_mask_work;

/*
 * Creates the mask of longer sequences, as for a cache that has grown: the mask that attune_mask_create gives for the
 * expression, parameters, block sizes, batch and heads of `mask` at these lengths, neither of which may be smaller.
 * `captures` are those that differ: arrays that have grown. The others stay the mask's own. Blocks that lie in the
 * lengths of `mask` are not classified again, unless the expression reads q_len or kv_len, or a capture that it reads
 * at another index than q or kv has another size, or elements that were there have other values. `mask` must be of
 * attune_mask_create or this function, without a segment, else UNSUPPORTED; it is unchanged, and not needed afterwards.
 * CANCELLED when `work` (NULL = no limits) stops it: the limits of `mask` itself are not kept.
 */
ATTUNE_API attune_status attune_mask_extend(const attune_mask *mask, int64_t q_len, int64_t kv_len,
                                            const attune_host_capture *captures, uint32_t capture_count,
                                            const attune_mask_work *work, attune_mask **extended);

/*
 * Combine masks of the same lengths, block sizes, batch and heads. The result is exact: blocks that the lists alone do
 * not decide are evaluated. Captures and parameters of the same name must have the same values. A mask of a segment
 * (desc.kv_total) combines with masks of the same segment and with masks built without kv_total: the result is of that
 * segment. Slices cannot be combined: combine first, then slice.
 */
ATTUNE_API attune_status attune_mask_and(const attune_mask *a, const attune_mask *b, attune_mask **mask);
ATTUNE_API attune_status attune_mask_or(const attune_mask *a, const attune_mask *b, attune_mask **mask);
ATTUNE_API attune_status attune_mask_not(const attune_mask *a, attune_mask **mask);

/* Operations of attune_mask_combine. */
typedef enum attune_mask_op {
    ATTUNE_MASK_AND = 1,
    ATTUNE_MASK_OR = 2,
    ATTUNE_MASK_NOT = 3 /* b is NULL */
} attune_mask_op;

/*
 * attune_mask_and, attune_mask_or or attune_mask_not, within limits. CANCELLED when `work` (NULL = no limits) stops it.
 * Work units are those of attune_mask_desc; reading a list entry, or eight elements of a dense mask, is also one unit.
 */
ATTUNE_API attune_status attune_mask_combine(attune_mask_op op, const attune_mask *a, const attune_mask *b,
                                             const attune_mask_work *work, attune_mask **mask);

/* The density and the size of a mask. */
typedef struct attune_mask_stats {
    uint32_t struct_size;
    double density;                              /* share of pairs that are allowed; an estimate, unless `exact` */
    double block_density;                        /* share of blocks that are not empty, which kernels compute */
    int64_t pairs;                               /* allowed pairs over all batches and heads; -1 unless `exact` */
    int64_t full_blocks, partial_blocks, blocks; /* as stored: a broadcast list counts once */
    uint64_t bytes;                              /* host memory of the mask */
} attune_mask_stats;

/* Computes statistics. With `exact` every partial block is evaluated, in time proportional to their elements. */
ATTUNE_API attune_status attune_mask_stats_get(const attune_mask *mask, bool exact, attune_mask_stats *stats);
/* Computes exact statistics, within limits. CANCELLED when `work` (NULL = no limits) stops it. */
ATTUNE_API attune_status attune_mask_stats_count(const attune_mask *mask, const attune_mask_work *work,
                                                 attune_mask_stats *stats);

/*
 * Draw one batch and head, with one character or pixel for each group of blocks. Text: at most `columns` wide and
 * `rows` high; U+2588 for a full group, U+2592 for a mixed one, a space for an empty one. Pixels: 8-bit RGB, rows from
 * top to bottom; dark for a full group, lighter for a smaller share of full blocks, white for an empty one. *width and
 * *height are the largest size on entry and the size drawn on return. pixels may be NULL to query the size.
 */
ATTUNE_API attune_status attune_mask_draw_text(const attune_mask *mask, int64_t batch, int64_t head, uint32_t columns,
                                               uint32_t rows, char *buffer, size_t size, size_t *needed);
ATTUNE_API attune_status attune_mask_draw_pixels(const attune_mask *mask, int64_t batch, int64_t head, uint8_t *pixels,
                                                 uint32_t *width, uint32_t *height);

/*
 * Copies a mask's lists and captures to a device. Required before attune_forward or attune_backward uses the mask
 * there. A second upload to the same device does nothing; on the CPU nothing is copied. Must not be called while
 * another thread uses the mask.
 */
ATTUNE_API attune_status attune_mask_upload(attune_mask *mask, attune_device *device);

/* ------------------------------------------------------------------------------------------------------------ plans */

/* The pass that a plan computes. */
typedef enum attune_direction { ATTUNE_FORWARD = 0, ATTUNE_BACKWARD = 1 } attune_direction;

/*
 * The problem that a plan solves. Lengths and batch are maxima: calls with shorter lengths or a smaller batch use the
 * same plan without recompiling. A forward plan for more queries than a decode kernel is faster for also has a decode
 * kernel, and the lengths of each call select one of the two (attune_plan_choice_at). One plan therefore serves a
 * prompt and the decode steps after it. With FORCE_USE_FLEX_ATTENTION it has no decode kernel.
 */
typedef struct attune_problem {
    uint32_t struct_size;
    attune_direction direction;
    attune_dtype dtype;       /* of q, k, v and o: ATTUNE_F32, F16, BF16, or F64 on the CPU; 0 = ATTUNE_F32 */
    uint32_t head_dim;        /* of q and k: a multiple of 8, 8 to 576; gradients above 256: the CPU alone */
    uint32_t head_dim_v;      /* of v and o, likewise, to 512; 0 = head_dim */
    int64_t batch;            /* 0 = 1 */
    int64_t kv_batch;         /* batch, or 1: k and v broadcast; 0 = batch */
    int64_t heads;            /* query heads; 0 = 1 */
    int64_t kv_heads;         /* divides heads; query head h reads k and v head h / (heads / kv_heads); 0 = heads */
    int64_t q_len;            /* the longest; at least 1, below 2^31 */
    int64_t kv_len;           /* the longest; 0 = q_len */
    double scale;             /* factor of q k^T; 0 = 1 / sqrt(head_dim) */
    const attune_expr *mask;  /* the expression of the block mask; of a mask with kv_total only through
                                 attune_problem_set_mask; NULL = none */
    const attune_expr *score; /* NULL = none */
    bool block_mask;          /* calls pass a block mask; implied by mask; without mask all of its blocks are full */
    bool lse;                 /* calls may request LSE */
    bool row_max;             /* calls may request row maxima */
    uint32_t mask_q_block;    /* the block size of the mask; 0 = 128 */
    uint32_t mask_kv_block;   /* 0 = 128 */
    /* ATTUNE_BACKWARD: the largest total number of elements of the captures whose gradients one call requests. Each
     * element takes 64 bytes of workspace. 0 = no capture gradients. */
    int64_t capture_gradient_elements;
    /*
     * The largest number of segments of a call (attune_segment); kv_len is then the length of the longest segment. 0 =
     * no segments: k and v are tensors. With segments, lse is implied, row_max is not available, and the workspace also
     * holds one partial result per segment.
     */
    uint32_t segments;
    /*
     * Element types that differ from dtype, which is then that of q: F32, F16 or BF16, not with F64; for example f32
     * queries and outputs with f16 or bf16 keys and values. docs/planning.md lists the combinations that each kernel
     * supports. Creating a plan returns UNSUPPORTED, with the reason, if no kernel of the device supports the
     * combination.
     */
    attune_dtype kv_dtype; /* of k and v (and d_k and d_v); 0 = dtype */
    attune_dtype o_dtype;  /* of o (and d_o); 0 = dtype */
    bool sinks;            /* calls pass sinks (attune_forward_args.sinks) */
    /*
     * Serving: calls pass a cache and a batch of sequences (attune_cache, attune_batch) instead of k, v and a mask; on
     * the CPU, Vulkan, CUDA and OpenCL, forward, without segments. tokens is the most rows of q in a call, over all
     * sequences; 0 = no serving. batch is then the most sequences of a call, q_len and kv_len the most rows and keys of
     * one sequence. `mask` is evaluated by the kernel for the lengths of each call; block_mask without it is an error.
     */
    int64_t tokens;
    int64_t page;         /* keys in a page, at least 1; 0 = each sequence is one page, of any length up to kv_len */
    bool tree;            /* calls may pass attune_batch.tree */
    attune_dtype v_dtype; /* serving: of v, if not kv_dtype, which is then that of k; either may be quantised */
    /*
     * Serving: the keys of a sequence are summed in parts that begin at the multiples of split_keys, and the parts are
     * added in order, whatever the batch: a sequence has the same bits alone and among others. A multiple of 256; 0 =
     * the device's choice: on the CPU 1,024; on Vulkan, CUDA and OpenCL parts that depend on the lengths of all
     * sequences, as bits then do.
     */
    uint32_t split_keys;
    /*
     * Serving: how many sequences of a call have their first keys in common, as a rule (attune_batch.shared); at most
     * batch. On GPUs tiles are chosen with room for the rows of so many sequences, and shared keys are then read once
     * for the rows of a tile, wherever the lengths of a call have that read fewer keys; CUDA's plans ignore the number
     * where that was slower (docs/serving.md). 0 or 1 = no tile has rows of two sequences, and batch.shared is ignored.
     * The CPU computes sequences together without it.
     */
    uint32_t shared_sequences;
} attune_problem;

/* Sets mask, block_mask, mask_q_block and mask_kv_block of a problem from a mask. The expression is valid as long as
 * the mask. */
ATTUNE_API attune_status attune_problem_set_mask(attune_problem *problem, const attune_mask *mask);

/* An option that is on, off or left to the planner. */
typedef enum attune_choice { ATTUNE_AUTO = 0, ATTUNE_ON = 1, ATTUNE_OFF = 2 } attune_choice;

/* FlexAttention's kernel options for one pass, in lower case; zero = automatic. Setting an option that the chosen
 * kernel does not read is an error. docs/planning.md lists the options of each kernel. */
typedef struct attune_pass_options {
    uint32_t block_m, block_n;   /* BLOCK_M, BLOCK_N: forward tile */
    uint32_t block_m1, block_n1; /* BLOCK_M1, BLOCK_N1: dK and dV tile */
    uint32_t block_m2, block_n2; /* BLOCK_M2, BLOCK_N2: dQ tile */
    uint32_t num_warps;
    uint32_t num_stages;
    uint32_t split_kv;                      /* SPLIT_KV: number of parts that a decode kernel splits the keys into */
    attune_choice force_use_flex_attention; /* FORCE_USE_FLEX_ATTENTION; ON: no decode kernel */
    attune_choice prescale_qk; /* PRESCALE_QK: multiply q by the scale where that saves a multiplication per score */
    attune_choice rows_guaranteed_safe;  /* ROWS_GUARANTEED_SAFE */
    attune_choice blocks_are_contiguous; /* BLOCKS_ARE_CONTIGUOUS */
    attune_choice write_dq;              /* WRITE_DQ */
    attune_choice use_tma;               /* USE_TMA */
    attune_choice deterministic;         /* DETERMINISTIC; ON: repeated backward calls give bitwise equal results */
    attune_choice approximate_tanh;      /* APPROXIMATE_TANH; ON: use the device's tanh, accurate to 2^-11 */
    char kernel[32];                     /* KERNEL: name of a kernel family, such as "cuda_sm80"; empty = automatic */
} attune_pass_options;

/* Kernel options. `any` applies to both passes; fwd and bwd override it for one pass, as the prefixes fwd_ and bwd_ do
 * in JSON. */
typedef struct attune_kernel_options {
    uint32_t struct_size;
    attune_pass_options any;
    attune_pass_options fwd;
    attune_pass_options bwd;
} attune_kernel_options;

/*
 * Parses kernel options from a JSON object such as {"BLOCK_M": 64, "fwd_num_stages": 2}. PARSE_ERROR with line and
 * column if the text is not one JSON object; INVALID_ARGUMENT, naming the key, for unknown or repeated keys and for
 * values of the wrong type. UNSUPPORTED if the library was built without JSON.
 */
ATTUNE_API attune_status attune_kernel_options_parse(const char *json, attune_kernel_options *options);

/* The kernel that the planner chose, with its parameters. Strings are static. */
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
    uint32_t shared_memory; /* bytes of one workgroup; in backward, of the kernel that uses more */
    uint32_t registers;     /* estimated registers of one thread; 0 = not estimated */
    uint32_t occupancy;     /* resident workgroups of one compute unit */
    uint64_t workspace;     /* bytes that the caller provides for each call; 0 = none */
    bool prescale_qk;
    bool use_tma;
    bool blocks_are_contiguous;
    bool rows_guaranteed_safe;
    bool write_dq;
    bool deterministic; /* repeated calls give bitwise equal results */
    bool approximate_tanh;
    /* Calls with at most this many queries and at least 256 keys run the plan's decode kernel instead
     * (attune_plan_choice_at); 0 = every call runs this kernel. */
    int64_t short_q_len;
} attune_plan_choice;

/* Output formats of the explain functions. */
typedef enum attune_text_format { ATTUNE_TEXT = 1, ATTUNE_JSON = 2 } attune_text_format;

/*
 * Runs the planner without a device. It is a pure function: the same inputs give the same choice on any machine.
 * options may be NULL. DOES_NOT_FIT if a forced option exceeds a limit: the message names the option, the bytes, the
 * limit and the nearest value that fits. Automatic options never fail for lack of shared memory. Any thread.
 */
ATTUNE_API attune_status attune_plan_choose(const attune_limits *limits, const attune_problem *problem,
                                            const attune_kernel_options *options, attune_plan_choice *choice);
/* The same as text: the choice and its reasons, the rejected candidates and their reasons, bytes, registers and
 * occupancy. */
ATTUNE_API attune_status attune_plan_choose_explain(const attune_limits *limits, const attune_problem *problem,
                                                    const attune_kernel_options *options, attune_text_format format,
                                                    char *buffer, size_t size, size_t *needed);

/* The kernels for a problem on a device, chosen and compiled. */
typedef struct attune_plan attune_plan;

/* Chooses the kernels and compiles those that are neither in a pack nor in the cache, which may take seconds. options
 * may be NULL. */
ATTUNE_API attune_status attune_plan_create(attune_device *device, const attune_problem *problem,
                                            const attune_kernel_options *options, attune_plan **plan);
ATTUNE_API void attune_plan_destroy(attune_plan *plan);
/* Returns the choice for calls of the plan's largest lengths. */
ATTUNE_API attune_status attune_plan_choice_get(const attune_plan *plan, attune_plan_choice *choice);
/* Returns the choice for calls of these lengths, which alone select one of the plan's kernels. INVALID_ARGUMENT if a
 * length is below 1 or above the plan's. */
ATTUNE_API attune_status attune_plan_choice_at(const attune_plan *plan, int64_t q_len, int64_t kv_len,
                                               attune_plan_choice *choice);
ATTUNE_API attune_status attune_plan_explain(const attune_plan *plan, attune_text_format format, char *buffer,
                                             size_t size, size_t *needed);
/* Returns the bytes of workspace that each call in flight needs, for any alignment of the buffer's memory; 0 = none. */
ATTUNE_API uint64_t attune_plan_workspace_size(const attune_plan *plan);

/* ------------------------------------------------------------------------------------------------------------ packs */

/*
 * Kernels compiled ahead of time, for machines without a compiler (CUDA without NVRTC) or without time for it. Making a
 * pack needs the compiler but no device. Plans with the same kernels, tiles, types and expressions use it. Packs are
 * for CUDA only: the CPU compiles no kernels, and a Vulkan driver compiles for the device that it runs.
 */
typedef struct attune_pack attune_pack;

/* Creates an empty pack. */
ATTUNE_API attune_status attune_pack_create(attune_instance *instance, attune_pack **pack);
ATTUNE_API void attune_pack_destroy(attune_pack *pack);
/*
 * Chooses kernels as attune_plan_create would on a device with these limits, compiles them, and adds those that the
 * pack does not have; with a block mask also the kernels of attune_mask_create_tensor. May take seconds. UNAVAILABLE
 * without the compiler, UNSUPPORTED for backends without packs; on failure the pack is unchanged. May be called by
 * several threads at once.
 */
ATTUNE_API attune_status attune_pack_add(attune_pack *pack, const attune_limits *limits, const attune_problem *problem,
                                         const attune_kernel_options *options);
/* Returns the number of kernels in a pack and their bytes; either output may be NULL. Any thread. */
ATTUNE_API attune_status attune_pack_size(const attune_pack *pack, uint32_t *kernels, uint64_t *bytes);
/* Writes the pack to a file. An existing file is replaced atomically and keeps its permissions; a link is replaced; a
 * device or pipe is written in place. IO if it cannot be written: an existing file is then unchanged. */
ATTUNE_API attune_status attune_pack_write(const attune_pack *pack, const char *path);

/*
 * Loads a pack from a file. Plans created afterwards on any device of the instance take their kernels from it before
 * they search the cache or compile. The instance owns the loaded pack. Several packs may be loaded; the latest is
 * searched first. IO if the file cannot be read, is not a pack or is corrupt (a digest covers every byte); UNSUPPORTED
 * if another version of attune wrote it; nothing is loaded then. Load only packs that you trust: their kernels run on
 * the device. Any thread, also while other threads create plans.
 */
ATTUNE_API attune_status attune_instance_pack_load(attune_instance *instance, const char *path);

/* -------------------------------------------------------------------------------------------------------- execution */

/* Runs calls in order: a CUDA stream, the queue of a Vulkan device, an OpenCL command queue, or the CPU itself. */
typedef struct attune_queue attune_queue;

/* Returns the device's own queue, which is valid as long as the device. Never NULL for a device. */
ATTUNE_API attune_queue *attune_device_queue(attune_device *device);

/* A point in a queue: a plain value that needs no release. Valid as long as the queue. */
typedef struct attune_completion {
    attune_queue *queue;
    uint64_t value;
} attune_completion;

/*
 * Waits until all work up to the completion is done; TIMEOUT after timeout_ns (UINT64_MAX = no limit, 0 = do not wait).
 */
ATTUNE_API attune_status attune_completion_wait(attune_completion completion, uint64_t timeout_ns);

/*
 * Computes the lists of a mask of attune_mask_create_tensor from a tensor [tensor_batch, tensor_heads, q_len, kv_len]
 * of any strides. The lengths may be shorter than those of the mask; they are then the lengths of calls with the mask.
 * Launches only. Later calls on the same queue use the new lists and read the tensor: until they are done, the tensor
 * must not move or change, and the mask must not be destroyed. Before the first update, and after an update that failed
 * on the device, calls reject the mask; an update with invalid arguments leaves it unchanged. An update that is
 * captured in a CUDA graph takes effect when the graph runs; after each run the mask has the captured lengths. Must not
 * be called while another thread uses the mask. completion may be NULL.
 */
ATTUNE_API attune_status attune_mask_update(attune_mask *mask, attune_queue *queue, const attune_tensor *tensor,
                                            attune_completion *completion);

/* A capture in device memory. */
typedef struct attune_capture {
    const char *name;
    attune_tensor tensor;
} attune_capture;

/*
 * A part of the keys and values in tensors of its own. A call over segments computes the same as over their
 * concatenation, without copying them. Examples are the keys of a cache and those of a draft, or the keys of each step
 * of an unrolled training. In score expressions, kv is the index in the concatenation and kv_len its length. A call may
 * have any number of segments up to the plan's, each of any length up to the plan's kv_len.
 */
typedef struct attune_segment {
    attune_tensor k, v; /* as in a call without segments, with the length of this segment */
    /*
     * The mask of this segment's keys: built with kv_start, the sum of the lengths of the segments before it, and
     * kv_total, the sum of all. In a mask built without kv_total, kv and kv_len refer to this segment only. NULL =
     * every pair, if the plan has no block mask.
     */
    const attune_mask *mask;
    attune_tensor d_k, d_v; /* attune_backward: outputs, as k and v */
} attune_segment;

/*
 * Where an engine keeps the keys and values of its sequences. The keys of a sequence are in pages; page i of it has its
 * keys [i * page, (i + 1) * page). Results do not depend, bit for bit, on where pages are: kernels visit keys in the
 * order of the sequence and translate pages for addresses alone.
 */
typedef struct attune_cache {
    uint32_t struct_size;
    /*
     * [pages, kv_heads, page, head_dim] of the problem's kv_dtype, and with head_dim_v. Any strides with a contiguous
     * last dimension describe the layouts that engines use: NHD and HND, K beside V in one buffer, a layer of a pool.
     * v.buffer NULL = the first head_dim_v columns of k. Keys that no sequence reads, in the tails of pages, in
     * unmapped pages and before kv_first, may hold anything, NaN included.
     */
    attune_tensor k, v;
    /*
     * The block table, i32: [sequences, most pages], whose row b has the pages of sequence b; or the pages of all
     * sequences one after another, [entries], with pages_start, i32 [sequences + 1], where sequence b has entries
     * pages_start[b] to pages_start[b + 1] - 1. Entries past a sequence's keys are not read, and several sequences may
     * share a page. The keys of an entry outside [0, pages), such as -1, are not allowed in any row. buffer NULL =
     * sequence b is page b; for plans with problem.page 0, and only for those.
     */
    attune_tensor pages;
    attune_tensor pages_start; /* buffer NULL = pages has rank 2 */
    /*
     * Factors of K and V in F8E4M3, F8E5M2 and I8, f32: [1], or [kv_heads], or [pages, kv_heads, page] for each key and
     * head. buffer NULL = 1; must be so for other types.
     */
    attune_tensor k_scale, v_scale;
} attune_cache;

/*
 * The sequences of a call: any mix of prefill, chunked prefill and decode. All tensors are i32 on the device, where
 * kernels read them when they run; the host never does. What they hold is therefore checked on the device: nothing out
 * of bounds is read or written. A sequence whose rows are not in the order of q_start or exceed q or the plan's q_len
 * is not computed, and its rows of o, lse and row_max are not written. The rows of a sequence whose kv_len is negative,
 * or exceeds the plan's or its block table, are fully masked.
 */
typedef struct attune_batch {
    uint32_t struct_size;
    /*
     * [sequences + 1]: sequence b has the rows q_start[b] to q_start[b + 1] - 1 of q, o, lse and row_max, which then
     * have one dimension for the rows of all sequences ([tokens, heads, ...]). Rows outside of all sequences are
     * neither read nor written. buffer NULL = q is [sequences, heads, q_len, head_dim], q_len rows each.
     */
    attune_tensor q_start;
    /* [sequences]: the keys of each sequence, those of this call's rows included, if they are in the cache. Row i of a
     * sequence is at position q = kv_len - q_len + i, negative if there are more rows than keys. */
    attune_tensor kv_len;
    attune_tensor kv_first; /* [sequences]: the first key that is kept, for sliding caches; keys before it are not
                               allowed in any row and not read. buffer NULL = 0 */
    /*
     * For plans with problem.tree: [tokens, words] ([sequences, q_len, words] without q_start), a bit mask over the
     * last q_len keys of the row's sequence, which are the drafts of this call: bit j % 32 of word j / 32 allows key
     * kv_len - q_len + j; bits past the words are 0. Earlier keys are not affected, and the mask expression forbids
     * further pairs. buffer NULL = no tree.
     */
    attune_tensor tree;
    attune_tensor count; /* [1]: the number of sequences of this call, which are the first; buffer NULL = all. For calls
                            that are recorded once for the largest batch */
    /*
     * [sequences]: how many of its first keys a sequence has in common with the one before it, such as a system prompt;
     * numbers below 0 are 0, and the first is not read. A hint: sequences that share keys, one after another, may be
     * computed together, so that the keys are read once (problem.shared_sequences). Nested prefixes are sequences in
     * the order of a tree. Results are the same if it is true, bit for bit on the CPU and with problem.split_keys, and
     * undefined if it is not. buffer NULL = none.
     */
    attune_tensor shared;
} attune_batch;

/* Arguments of attune_forward. */
typedef struct attune_forward_args {
    uint32_t struct_size;
    attune_tensor q;         /* [batch, heads, q_len, head_dim] of the problem's dtype */
    attune_tensor k;         /* [kv_batch, kv_heads, kv_len, head_dim] of its kv_dtype */
    attune_tensor v;         /* [kv_batch, kv_heads, kv_len, head_dim_v], likewise */
    attune_tensor o;         /* [batch, heads, q_len, head_dim_v] of its o_dtype; output */
    attune_tensor lse;       /* [batch, heads, q_len] f32 (f64 with f64); output; buffer NULL = not requested */
    attune_tensor row_max;   /* likewise: the largest score of each row, after score expression and mask */
    const attune_mask *mask; /* uploaded to the device, of at least the lengths of q and k; NULL = every pair */
    /*
     * The captures and parameters of the score expression. Every name that it reads is required; other names are
     * ignored, so that several plans can share one table. A parameter that the mask reads must have the value that the
     * mask was built with.
     */
    const attune_capture *captures;
    uint32_t capture_count;
    const attune_parameter *parameters;
    uint32_t parameter_count;
    attune_buffer *workspace;       /* at least attune_plan_workspace_size bytes; one for each call in flight */
    uint64_t workspace_offset;      /* a multiple of 256 */
    double *seconds;                /* not NULL: the call waits, and stores the device's time for the launches */
    const attune_segment *segments; /* for plans with segments, in the order of the concatenation; k, v and mask above
                                       are then not read */
    uint32_t segment_count;
    /*
     * For plans with problem.sinks: [heads] f32 (f64 with f64), a logit of each query head that is added to the
     * denominator of the softmax alone, as if a key with this score and v = 0 were allowed in every row. -inf adds
     * nothing; NaN and +inf make the head's rows NaN. Not modified by the score expression; a call over segments counts
     * it once. Of calls over parts of the keys that are merged with attune_merge, one must pass the sinks and the
     * others must not.
     */
    attune_tensor sinks;
    /*
     * For plans with problem.tokens, both required; k, v, mask and segments above are then not read. q is [tokens,
     * heads, head_dim], o [tokens, heads, head_dim_v], lse and row_max [tokens, heads] with batch->q_start, and as
     * above without. In expressions b is the index of the sequence; q, kv, q_len and kv_len are its own: positions and
     * lengths of this call; row is the index of the row among those of all sequences. captures and parameters are those
     * of the score and of the mask expression.
     */
    const attune_cache *cache;
    const attune_batch *batch;
    /* Of serving: what attune_schedule wrote for the lengths of this batch. NULL = each call computes its own, in the
     * workspace. */
    attune_buffer *schedule;
    uint64_t schedule_offset; /* a multiple of 256 */
} attune_forward_args;

/*
 * Computes, for each batch b, head h and row q, over the kv that the mask allows,
 *
 *     s[kv] = score(scale * dot(q[b,h,q], k[b',h',kv]))       row_max = max s       lse = log(sum exp(s))
 *     o     = sum exp(s - lse) v[b',h',kv]
 *
 * with softmax and accumulation in float32 (float64 for f64), by the online algorithm of Milakov & Gimelshein (2018) in
 * the tiling of Dao et al., FlashAttention (2022). For a fully masked row, or one whose allowed scores are all -inf, o
 * = 0 and lse = row_max = -inf. With sinks, exp(sinks[h]) is part of the sum: lse includes it, row_max does not, and a
 * fully masked row has o = 0 and lse = sinks[h].
 *
 * The lengths of the call select one of the plan's kernels (attune_plan_choice_at). Repeated calls give bitwise equal
 * results; the same row in a call of other lengths may differ by rounding.
 *
 * Launches only: no allocation, no compilation, and no wait unless args->seconds is set. The work may continue after
 * return: tensors and mask must stay valid until `completion` (which may be NULL) is reached. On the CPU the work is
 * done on return. Several threads may use a plan at once, each with its own workspace. Outputs must overlap neither
 * inputs nor one another; this is not checked.
 */
ATTUNE_API attune_status attune_forward(const attune_plan *plan, attune_queue *queue, const attune_forward_args *args,
                                        attune_completion *completion);

/*
 * Divides the work of a batch over the device's compute units, once for all calls of a step. args are those of any of
 * these calls of attune_forward: the batch's rows and lengths (q_start, kv_len, kv_first, count, shared) and the block
 * table are read, and attune_plan_schedule_size bytes are written to args->schedule.
 *
 * The layers of a model may then pass it: calls with these rows and lengths and a block table of this size, of the same
 * plan, or of a plan with the same choice whose problem differs in expressions and scale alone. It is valid until rows
 * or lengths change, may be written again for others, and does not affect results. On CUDA it also counts the parts of
 * a call that are done: calls with the same schedule must not run at once, so that several streams need one each.
 * Launches only, as attune_forward.
 */
ATTUNE_API attune_status attune_schedule(const attune_plan *plan, attune_queue *queue, const attune_forward_args *args,
                                         attune_completion *completion);
/* Returns the bytes of a schedule; 0 for plans that have none: on CUDA and OpenCL those of few keys, whose calls are
 * one launch. */
ATTUNE_API uint64_t attune_plan_schedule_size(const attune_plan *plan);

/* Arguments of attune_append. Rows are those of attune_forward: [tokens, heads, columns], or [sequences, heads, q_len,
 * columns] with a batch that has no q_start; `slots` and `positions` are [tokens], or [sequences, q_len]. */
typedef struct attune_append_args {
    uint32_t struct_size;
    attune_tensor k; /* [tokens, kv_heads, head_dim] of the problem's dtype */
    attune_tensor v; /* [tokens, kv_heads, head_dim_v], likewise; buffer NULL if cache->v.buffer is, and only then */
    /* Of the plan's types, as in attune_forward; k and v are outputs, and so are k_scale and v_scale of rank 3. Of the
     * block table only what a batch needs is read. */
    const attune_cache *cache;
    /*
     * Where rows go. slots: i64, page * (keys in a page) + key in the page; a negative slot, and one that is not in the
     * cache, is not written. Rows with equal slots leave the slot undefined. buffer NULL = those of batch: row i of a
     * sequence is its key kv_len - q_len + i, in the page that the block table has, if any.
     */
    attune_tensor slots;
    /* As in attune_forward, required without slots; kv_first and tree are not read. Rows outside of its sequences are
     * neither read nor written. NULL = every row is there. */
    const attune_batch *batch;
    /*
     * The rotation of RoPE: for each position the cosines and sines, [positions, columns / 2], f32 (f64 with f64), of
     * `columns` columns of k and q, which begin at rotary_first. (x, y) becomes (x cos - y sin, x sin + y cos), where x
     * and y are columns 2 i and 2 i + 1 if `interleaved`, else i and i + columns / 2. buffer NULL = none. A row whose
     * position is not in the tables is not written.
     */
    attune_tensor cosine, sine;
    attune_tensor positions; /* i32; buffer NULL = kv_len - q_len + i of batch, which RoPE then requires */
    uint32_t rotary_first;
    bool interleaved;
    /* Before the rotation, each head's first `columns` columns are divided by their root mean square and multiplied by
     * the weights [columns], f32 or of the problem's dtype (f64 with f64). buffer NULL = not normalised. */
    attune_tensor k_norm, q_norm;
    double norm_epsilon; /* added to the mean square */
    /* Queries, [tokens, heads, head_dim], which are normalised and rotated likewise into q_out, which may be q as the
     * same view. buffer NULL = none; both or neither. */
    attune_tensor q, q_out;
    double *seconds; /* as in forward */
} attune_append_args;

/*
 * Writes new keys and values into a cache, before the attune_forward that reads them, with a plan of serving
 * (problem.tokens): k is normalised, rotated, rounded or quantised, and written, in this order; v is rounded or
 * quantised, and written.
 *
 * F8E4M3, F8E5M2 and I8: value / factor is rounded to the nearest code, ties to even; values past the largest code
 * become it. Factors of rank 1 are read. Those of rank 3 are computed, the largest magnitude of the row over that of
 * the codes (448, 57344, 127), and written. NaN stays NaN, but for I8 with factors of rank 1, where it becomes 0. Q8_0
 * and Q4_0 are the bits of ggml's quantize_row_q8_0_ref and quantize_row_q4_0_ref; a block with a value that is not
 * finite is NaN, and one whose factor has no finite inverse in f32 (below 2.94e-39), which C leaves undefined there,
 * has the codes of 0. The CPU normalises and rotates in double and rounds once, the other devices in f32: codes may
 * then differ by one. Without norm and rotation the bits are the same.
 *
 * Launches only, as attune_forward. Needs no workspace. The host checks shapes and types; contents of integers are
 * checked on the device, and nothing out of bounds is written.
 */
ATTUNE_API attune_status attune_append(const attune_plan *plan, attune_queue *queue, const attune_append_args *args,
                                       attune_completion *completion);

/* Arguments of attune_backward. */
typedef struct attune_backward_args {
    uint32_t struct_size;
    attune_tensor q, k, v, o;    /* as in forward */
    attune_tensor lse;           /* from the forward pass */
    attune_tensor d_o;           /* as o */
    attune_tensor d_lse;         /* as lse; buffer NULL = the loss does not use LSE */
    attune_tensor d_q, d_k, d_v; /* outputs, as q, k and v */
    const attune_mask *mask;     /* from here on as in attune_forward_args, unless stated otherwise */
    const attune_capture *captures;
    uint32_t capture_count;
    const attune_capture *capture_gradients; /* outputs, f32, of the shapes of the captures of the same names, which are
                                                floating-point; the gradients are added to their contents */
    uint32_t capture_gradient_count;
    const attune_parameter *parameters;
    uint32_t parameter_count;
    attune_buffer *workspace;
    uint64_t workspace_offset;
    double *seconds;
    const attune_segment *segments; /* as in forward; k, v, mask, d_k and d_v above are not read */
    uint32_t segment_count;
    attune_tensor sinks;   /* as in forward */
    attune_tensor d_sinks; /* output, as sinks; buffer NULL = not requested */
} attune_backward_args;

/*
 * Computes the gradients of a loss from its derivatives d_o with respect to o and d_lse with respect to lse. With p =
 * exp(s - lse) and delta = dot(o, d_o) - d_lse,
 *
 *     d_v = sum p d_o      ds = p (dot(d_o, v) - delta) score'(...)      d_q = scale sum ds k      d_k = scale sum ds q
 *
 * With sinks, d_sinks[h] is the sum of -exp(sinks[h] - lse) delta over the rows of head h.
 *
 * P is recomputed tile by tile, as in Dao et al., FlashAttention (2022). d_k and d_v sum over the query heads that
 * share them, and over the batch where k and v broadcast. Fully masked rows contribute 0. The score expression's
 * derivatives are those of ATTUNE_EXPR_GRADIENT. Repeated calls give bitwise equal results, for any number of threads,
 * if `deterministic` is set in the plan's choice. With the option of that name it always is. Without it these may
 * differ by rounding: d_q of cuda_sm90a, cuda_sm100a and cuda_sm80_atomic, d_k and d_v of cuda_sm90a without a block
 * mask, and of cuda_sm90a and cuda_sm100a the gradients of large captures that each pair reads by itself, as bias[q,
 * kv].
 *
 * Otherwise as attune_forward, for a plan whose direction is ATTUNE_BACKWARD. Every backend has a backward pass.
 */
ATTUNE_API attune_status attune_backward(const attune_plan *plan, attune_queue *queue, const attune_backward_args *args,
                                         attune_completion *completion);

/* ---------------------------------------------------------------------------------------------------------- merging */

/* Merges partial results over parts of the keys into the result over all keys, and computes the gradients of the parts
 * from those of the result. One merger serves all types and shapes on its device. */
typedef struct attune_merger attune_merger;

/* Creates a merger; compiles if the backend does. Every backend has merge kernels. */
ATTUNE_API attune_status attune_merger_create(attune_device *device, attune_merger **merger);
ATTUNE_API void attune_merger_destroy(attune_merger *merger);
/* Returns the bytes of workspace that attune_merge or attune_merge_backward needs for part_count parts and an o of this
 * dtype and size (its buffer and strides are not read); UINT64_MAX if the bytes exceed 64 bits. */
ATTUNE_API uint64_t attune_merger_workspace_size(const attune_merger *merger, const attune_tensor *o,
                                                 uint32_t part_count);

/* One of the partial results. */
typedef struct attune_merge_part {
    attune_tensor o;     /* [batch, heads, q_len, head_dim_v], each below 2^31: the dtype of the merged o, or f32 */
    attune_tensor lse;   /* [batch, heads, q_len] f32 (f64 with f64) */
    attune_tensor d_o;   /* attune_merge_backward: output, as o; buffer NULL = not requested */
    attune_tensor d_lse; /* likewise, as lse */
} attune_merge_part;

/* Arguments of attune_merge. */
typedef struct attune_merge_args {
    uint32_t struct_size;
    const attune_merge_part *parts; /* at least 1; their order affects the result only by rounding */
    uint32_t part_count;
    attune_tensor o;           /* output; may be the o of a part, as the same view */
    attune_tensor lse;         /* output; may be the lse of a part, as the same view; buffer NULL = not requested */
    attune_buffer *workspace;  /* at least attune_merger_workspace_size bytes */
    uint64_t workspace_offset; /* a multiple of 256 */
    double *seconds;           /* as in forward */
} attune_merge_args;

/*
 * Computes, for each row,
 *
 *     lse = log(sum exp(lse_i))     o = sum exp(lse_i - lse) o_i
 *
 * For results of attune_forward over parts of the keys, this is the result over all keys. A part whose lse is -inf
 * contributes nothing, whatever its o contains; if all are -inf, o = 0 and lse = -inf. An lse that is NaN or +inf makes
 * the row NaN. Launches only, as attune_forward. Outputs must not overlap inputs, except as stated in
 * attune_merge_args.
 */
ATTUNE_API attune_status attune_merge(const attune_merger *merger, attune_queue *queue, const attune_merge_args *args,
                                      attune_completion *completion);

/* Arguments of attune_merge_backward. */
typedef struct attune_merge_backward_args {
    uint32_t struct_size;
    const attune_merge_part *parts; /* o and lse are inputs, d_o and d_lse outputs */
    uint32_t part_count;
    attune_tensor o, lse; /* from attune_merge */
    attune_tensor d_o;    /* as o */
    attune_tensor d_lse;  /* as lse; buffer NULL = the loss does not use the merged LSE */
    attune_buffer *workspace;
    uint64_t workspace_offset;
    double *seconds;
} attune_merge_backward_args;

/*
 * Computes the gradients of the parts. With w_i = exp(lse_i - lse),
 *
 *     d_o_i = w_i d_o     d_lse_i = w_i (dot(d_o, o_i - o) + d_lse)
 *
 * and 0 for a part whose lse is -inf. attune_backward takes d_lse_i as its d_lse.
 */
ATTUNE_API attune_status attune_merge_backward(const attune_merger *merger, attune_queue *queue,
                                               const attune_merge_backward_args *args, attune_completion *completion);

#ifdef __cplusplus
}
#endif

#endif /* ATTUNE_ATTUNE_H */
