/* SPDX-License-Identifier: MIT */
/*
 * Attention over several devices: which rank has which rows and keys, and what it needs of others.
 *
 *     partition.c   chunks to ranks, and what their rows need     balance.c   chunks to ranks, and swaps of them
 *     split.c       chunks to ranks by work, in few runs          create.c    the masks, plan and messages of a rank
 *     forward.c, backward.c   calls                               call.c      what calls have in common
 *     sums.c        gradients of several ranks                    decode.c    keys that stay, and queries that are sent
 */
#ifndef ATTUNE_DISTRIBUTED_RANKS_H
#define ATTUNE_DISTRIBUTED_RANKS_H

#include <attune/distributed.h>

#include "api/api.h"
#include "base/hash.h"
#include "base/round.h"

/* The work of one full block. Work is counted in integers, so that sums are the same on every machine. */
#define ATTUNE__FULL_WORK 1024

/* The runs of all ranks: those of rank r are items[offsets[r]] to items[offsets[r + 1] - 1]. */
typedef struct attune__run_lists {
    size_t *offsets; /* ranks + 1 */
    attune_run *items;
    size_t count, capacity;
} attune__run_lists;

struct attune_partition {
    attune_allocator allocator; /* a copy */
    uint32_t ranks;
    uint32_t q_block, kv_block;
    int64_t q_len, kv_len, chunk;
    double partial_cost;
    int64_t *work; /* of each rank */
    attune__run_lists rows, keys, needs;
    attune__hash hash;
};

/* The runs of a rank. */
typedef struct attune__run_view {
    const attune_run *items;
    size_t count;
} attune__run_view;
static inline attune__run_view attune__runs_of(const attune__run_lists *lists, uint32_t r)
{
    const size_t count = lists->offsets[r + 1] - lists->offsets[r];
    return (attune__run_view){count ? lists->items + lists->offsets[r] : NULL, count};
}
static inline int64_t attune__runs_length(attune__run_view runs)
{
    int64_t sum = 0;
    for (size_t i = 0; i < runs.count; i++)
        sum += runs.items[i].count;
    return sum;
}

/* Sets the bits of the key blocks that rows compute, one for each block column, and clears the others; `needed` has so
 * many words. */
size_t attune__needed_words(const attune_mask *mask);
void attune__find_needed(const attune_mask *mask, attune__run_view rows, uint64_t *needed);

/* The keys, in chunks, that the rows of each chunk need: a bit for each. */
typedef struct attune__needs {
    int64_t keys, words;
    bool together;  /* keys go with the rows of the same positions; otherwise they are dealt contiguously */
    uint64_t *bits; /* count * words */
    int64_t *span;  /* count * 2: the words from the first to the last that is not 0, and the end */
    uint64_t *all;  /* words, for attune__deal_split */
} attune__needs;

/* A chunk of a rank, for attune__deal_swap. */
typedef struct attune__spot {
    int64_t work, chunk;
    int64_t *at; /* on the rank's list of chunks */
    int64_t end;
} attune__spot;

/* Chunks and the ranks that have them. */
typedef struct attune__deal {
    uint32_t ranks;
    int64_t count;
    const int64_t *work; /* of each chunk; NULL if the layout does not depend on it */
    uint32_t *rank;      /* of each chunk: the result */
    int64_t *load;       /* of each rank */
    int64_t *first;      /* ranks + 1, and chunks: for attune__deal_swap, the chunks of each rank */
    int64_t *chunks;
    attune__spot *spots; /* chunks */
    int64_t *order;      /* chunks, for attune__deal_split, with needs; needs NULL = not known */
    attune__needs *needs;
} attune__deal;

/* How many of `count` things in equal parts come before a part: the first parts have one more. */
int64_t attune__equal_share(int64_t count, int64_t parts, int64_t part);

void attune__deal_contiguous(attune__deal *deal);
void attune__deal_zigzag(attune__deal *deal);
void attune__deal_striped(attune__deal *deal);
/* Consecutive chunks, at most `most` for a rank, so that the largest load is least. most * ranks >= count. */
void attune__deal_cut(attune__deal *deal, int64_t most);
/* Equal numbers of chunks and about equal work, in few runs whose rows need few keys of other ranks. */
void attune__deal_split(attune__deal *deal);
/* Swaps chunks between ranks until the largest load is within 2 % of the mean. False if no swap reduces it further. */
bool attune__deal_swap(attune__deal *deal);

/* ------------------------------------------------------------------------------------------------------------ calls */

/* Keys that go to a rank, or come from one: those from `start` on of the tensor that they are in. */
typedef struct attune__transfer {
    uint32_t peer;
    int64_t start, count;
} attune__transfer;

/* The keys of one launch. */
typedef struct attune__distributed_part {
    int64_t keys; /* 0 = no launch */
    attune_mask *mask;
    attune_buffer *positions; /* i32 [keys]; NULL = their own index */
} attune__distributed_part;

enum { ATTUNE__OWN, ATTUNE__OTHERS, ATTUNE__DISTRIBUTED_PARTS };

/* Own keys among all keys, where one launch computes both parts: `count` from `start` on lie from `at` on. */
typedef struct attune__own_copy {
    int64_t start, count, at;
} attune__own_copy;

/* Some own keys whose gradients the same ranks contribute to. */
typedef struct attune__key_sum {
    int64_t start, count;
    size_t first, contributions; /* its first contribution, and their number */
} attune__key_sum;

/* Where the gradients of one rank begin: among those of the own keys, or among those that other ranks return. */
typedef struct attune__contribution {
    bool returned;
    int64_t start;
} attune__contribution;

/* Gradients of keys, in f32 or f64: of the parts, and what other ranks return. */
enum { ATTUNE__RETURNED = ATTUNE__DISTRIBUTED_PARTS, ATTUNE__KEY_GRADIENTS };
typedef struct attune__key_gradients {
    int64_t keys; /* 0 = none */
    uint64_t k_at, v_at;
} attune__key_gradients;

/* Gradients that are summed over all ranks: of captures, and of sinks. Each rank sums a slice of whole lines. */
#define ATTUNE__REDUCTION_LINE 64 /* elements */
typedef struct attune__reduction {
    attune_dtype dtype;
    int64_t lines;      /* 0 = none */
    uint64_t at;        /* of this rank's, then of the sum */
    uint64_t slices_at; /* of this rank's slice, as other ranks have it */
} attune__reduction;

enum { ATTUNE__OF_CAPTURES, ATTUNE__OF_SINKS, ATTUNE__REDUCTIONS };

struct attune_distributed {
    attune_device *device; /* retained */
    attune_transport transport;
    bool token_major;
    bool aborted;
    int64_t q_len, kv_len;
    int64_t rows, own_keys;
    attune__shape shape; /* of the problem over the whole sequence */
    attune__distributed_part parts[ATTUNE__DISTRIBUTED_PARTS];
    const attune_expr *mask_expr;   /* of the whole mask, retained, and ... */
    attune__value *mask_parameters; /* ... what its parameters were; NULL with mask_expr NULL */
    attune_buffer *positions;       /* i32 [rows], of the rows; NULL = their own index */
    attune_plan *plan;              /* NULL = no rows */
    attune__program *merger;        /* NULL = nothing to merge */
    attune__transfer *sends, *receives;
    size_t send_count, receive_count;
    attune__own_copy *own_copies; /* none: each part has its own launch */
    size_t own_copy_count;
    uint32_t splits;          /* of decode, which stay for other ranks to merge; 0 = they are combined first */
    int64_t first_heads;      /* KV heads whose keys are sent, and computed, before the others; 0 = all at once */
    bool reads;               /* keys are not sent: a launch of this rank reads them where they are */
    attune_message *messages; /* of one exchange */
    char *staging; /* the bytes of its messages in host memory; NULL if they are not copied, and have no `copies` */
    attune__copy *copies;
    uint32_t received; /* of the copies, from the first on: to the device after the exchange */
    /* Offsets in the workspace: k and v of others, partial results, and what the merge and the plan need. */
    uint64_t k_at, v_at, part_at, part_size, lse_at, merge_at, plan_at, workspace;
    /* Backward: */
    const attune_expr *score;  /* of the problem, retained; NULL = none */
    attune__transfer *returns; /* as sends, among the keys that all ranks return */
    attune__key_gradients gradients[ATTUNE__KEY_GRADIENTS];
    attune__key_sum *sums; /* of the own keys, in order; none if this rank alone has gradients of them */
    size_t sum_count;
    attune__contribution *contributions;
    attune__reduction reductions[ATTUNE__REDUCTIONS];
    attune_buffer *zeros; /* a row of them, of the type of sums */
};

/* Reserves bytes of the workspace. */
static inline uint64_t attune__distributed_reserve(attune_distributed *d, uint64_t bytes)
{
    const uint64_t at = d->workspace;
    d->workspace += attune__round_up64(bytes, 256);
    return at;
}
/* Whether both parts are computed, and their results merged. */
static inline bool attune__distributed_split(const attune_distributed *d)
{
    return d->parts[ATTUNE__OWN].keys && d->parts[ATTUNE__OTHERS].keys;
}
/* Whether a launch writes partial results, of f32 or f64, and none of the call's tensors. In backward gradients of keys
 * are sums over the ranks, and one kernel writes all three. */
static inline bool attune__distributed_partial(const attune_distributed *d)
{
    return d->shape.direction == ATTUNE_FORWARD ? attune__distributed_split(d) : d->transport.size > 1;
}
/* The parts with keys, of a rank with rows. */
static inline uint32_t attune__distributed_part_count(const attune_distributed *d)
{
    return attune__distributed_split(d) ? 2 : 1;
}
/* The lines of a reduction that are in the slices of ranks below r. */
static inline int64_t attune__reduction_slice(const attune_distributed *d, const attune__reduction *reduction,
                                              uint32_t r)
{
    return reduction->lines * (int64_t)r / (int64_t)d->transport.size;
}

/* Planes of k and v whose rows are adjacent in memory, and the elements of a row, for a head_dim. */
static inline int64_t attune__transfer_planes(const attune_distributed *d)
{
    return d->shape.kv_batch * (d->token_major ? 1 : d->shape.kv_heads);
}
static inline int64_t attune__transfer_row(const attune_distributed *d, uint32_t head_dim)
{
    return head_dim * (d->token_major ? d->shape.kv_heads : 1);
}

/* Copies a transport, and checks what this rank needs to tell others of an error. */
attune_status attune__distributed_transport(const attune_transport *given, attune_transport *t);
/* Checks the rest of it. */
attune_status attune__distributed_check_transport(const attune_transport *t);
/* Checks the arguments without which there is no object, and tells the others if one is NULL. `name`: of `object`. */
attune_status attune__distributed_begin_create(const attune_transport *t, const attune_device *device,
                                               const void *object, const char *name);
/* The score expression as the rank's calls evaluate it, retained. */
attune_status attune__distributed_score(const attune_distributed *d, const attune_expr *score, attune_expr **made);
/* Adds what every rank must have alike. */
void attune__distributed_hash(const attune_distributed *d, const attune_expr *score, attune__hash *hash);
/* Compares statuses and hashes. Returns the same on every rank, except that a rank that failed returns
 * its own error. */
attune_status attune__distributed_agree(attune_distributed *d, attune__hash hash, attune_status status);
/* Allocates room for the most messages of an exchange, and for their bytes where they are copied. */
attune_status attune__distributed_make_messages(attune_distributed *d, size_t count, uint64_t bytes);

/* Prepares the sums of gradients over several ranks, after the messages. */
attune_status attune__distributed_make_sums(attune_distributed *d, const attune_expr *score);

/* The arguments that calls of both directions have. */
typedef struct attune__distributed_call {
    attune_distributed *d;
    attune_queue *queue;
    attune_buffer *workspace;
    uint64_t workspace_offset;
    const attune_capture *captures;
    uint32_t capture_count;
    const attune_parameter *parameters;
    uint32_t parameter_count;
    attune_tensor k[ATTUNE__DISTRIBUTED_PARTS], v[ATTUNE__DISTRIBUTED_PARTS];
    int64_t kv_head, kv_heads; /* that are sent or computed */
    uint64_t value;
    double *seconds; /* NULL = not measured */
} attune__distributed_call;

/* Fails if an earlier call aborted the transport. */
attune_status attune__distributed_usable(const attune_distributed *d);
/* Begins a call: fails unless the queue is of the device, and the object of this direction. */
attune_status attune__distributed_begin(const attune__distributed_call *c, attune_direction direction);
/* Ends a call: one that failed aborts the transport. */
attune_status attune__distributed_end(attune__distributed_call *c, attune_status status, attune_completion *completion);
/* Refuses what several ranks do not have; `mask`: the name, with what to use instead. */
attune_status attune__distributed_check_args(const attune_forward_args *a, const char *mask);
attune_status attune__distributed_check_workspace(const attune__distributed_call *c);
/* Checks the workspace, and k and v of this rank; fills k and v. */
attune_status attune__distributed_check(attune__distributed_call *c, const attune_tensor *k, const attune_tensor *v);
/* Checks the sizes of a tensor of the own keys. */
attune_status attune__distributed_check_keys(const attune__distributed_call *c, const char *name, attune_dtype dtype,
                                             uint32_t head_dim, bool writable, attune_tensor *t);
/* A tensor of `keys` keys in the workspace, in the layout of the own ones. */
attune_tensor attune__distributed_keys(const attune__distributed_call *c, uint64_t at, int64_t keys, attune_dtype dtype,
                                       uint32_t head_dim);

/* Some keys of such a tensor. */
attune_tensor attune__distributed_slice(const attune_tensor *t, int64_t start, int64_t count);

/* The error of a callback that failed. `failures`: of the thread before it, which may have called attune. */
attune_status attune__distributed_callback_failed(const attune_transport *t, const char *name, attune_status status,
                                                  uint64_t failures);
/* The address of a message's bytes; NULL if they are not in host memory. */
void *attune__distributed_memory(const attune_buffer *buffer, uint64_t offset);
/* Lists the messages of the transfers of a peer, the next of which is *next: k, then v, of the call's heads. Returns
 * their number. */
uint32_t attune__distributed_list(const attune__distributed_call *c, const attune__transfer *transfers, size_t count,
                                  size_t *next, uint32_t peer, const attune_tensor *k, const attune_tensor *v,
                                  attune_message *to);
/* Exchanges the first messages of d->messages, and the receives after them. */
attune_status attune__distributed_exchange(const attune__distributed_call *c, uint32_t sends, uint32_t receives);
attune_status attune__distributed_finish(const attune__distributed_call *c);
/* Lends the first messages of `messages`, and fills the receives after them with what other ranks lend. Reads of these
 * are enqueued before attune__distributed_finish. Other ranks may look at the sends until the next call has returned.
 */
attune_status attune__distributed_lend(const attune__distributed_call *c, attune_message *messages, uint32_t sends,
                                       uint32_t receives);
/* Copies the arguments that forward and backward have alike, of a call with `args` and `seconds`. */
#define ATTUNE__DISTRIBUTED_ARGUMENTS(c)                                                                               \
    do {                                                                                                               \
        (c)->base.workspace = (c)->args.workspace;                                                                     \
        (c)->base.workspace_offset = (c)->args.workspace_offset;                                                       \
        (c)->base.captures = (c)->args.captures;                                                                       \
        (c)->base.capture_count = (c)->args.capture_count;                                                             \
        (c)->base.parameters = (c)->args.parameters;                                                                   \
        (c)->base.parameter_count = (c)->args.parameter_count;                                                         \
        (c)->base.seconds = (c)->args.seconds ? &(c)->seconds : NULL;                                                  \
    } while (0)

/* Computes the keys of a part: the first that is computed has the sinks. */
typedef attune_status (*attune__distributed_compute_fn)(attune__distributed_call *c, int part);
/* Sends keys, computes the own ones meanwhile, and then those of others; or some heads while those of others arrive. */
attune_status attune__distributed_compute(attune__distributed_call *c, attune__distributed_compute_fn compute);

/* The symbols of the score expression: the engine's and those of attune__expr_gather. */
typedef struct attune__distributed_symbols {
    attune_capture captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_parameter parameters[ATTUNE_EXPR_MAX_SYMBOLS];
    uint32_t capture_count, parameter_count;
} attune__distributed_symbols;
void attune__distributed_find_symbols(const attune__distributed_call *c, int part, attune__distributed_symbols *found);

/* The partial result of a part, shaped as o, or as d_q; or its LSE. The parts with keys are numbered from 0 on. */
attune_tensor attune__distributed_result(const attune__distributed_call *c, int part, const attune_tensor *like);
attune_tensor attune__distributed_result_lse(const attune__distributed_call *c, int part, const attune_tensor *like);
/* attune__merge_part_fn of an array of tensors. */
attune__merge_part attune__distributed_part_at(const void *user, uint32_t index);
/* Merges results; lse.buffer NULL = a sum. */
attune_status attune__distributed_merge(attune__distributed_call *c, const attune_tensor *o, const attune_tensor *lse,
                                        uint32_t count, attune__merge_part_fn part, const void *user);

/* Copies tensors, at most ATTUNE__MERGE_PARTS, in one launch where the device can. */
attune_status attune__distributed_copy(attune__distributed_call *c, const attune__copied *parts, uint32_t count);

/* Gradients of captures and sinks where this rank's launches write them: those of the call on one rank. */
typedef struct attune__shared_gradients {
    attune_capture captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_tensor wanted[ATTUNE_EXPR_MAX_SYMBOLS]; /* the call's, checked */
    uint32_t capture_count;
    attune_tensor sinks, wanted_sinks;
} attune__shared_gradients;
/* Checks those that a call wants, and sets those in the workspace to 0. */
attune_status attune__distributed_begin_sums(attune__distributed_call *c, const attune_backward_args *args,
                                             attune__shared_gradients *shared);
/* Returns gradients of others' keys, and slices of those of captures and sinks. */
attune_status attune__distributed_return(const attune__distributed_call *c);
/* After that: sums gradients of the own keys in the order of ranks, and those of captures and sinks. */
attune_status attune__distributed_sum(attune__distributed_call *c, const attune_tensor *d_k, const attune_tensor *d_v,
                                      const attune__shared_gradients *shared);
/* Gradients of the keys of a part, or what other ranks return. */
attune_tensor attune__distributed_key_gradient(const attune__distributed_call *c, int which, bool of_v);

#endif
