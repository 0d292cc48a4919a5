/* SPDX-License-Identifier: MIT */
/*
 * Attention over several devices (context parallelism): a sequence is cut over ranks, each of which has some of its
 * rows and keys. A rank is a device, and a process or a thread that calls attune for it.
 *
 *     attune_mask -> attune_partition (rows and keys of each rank, and the keys that it needs of others)
 *                 -> attune_distributed (masks, plan, messages) -> attune_distributed_forward, _backward
 *
 * A partition is a pure function of the mask and the description: every rank creates the same one. Ranks communicate
 * through the engine's own transport, a struct of callbacks: attune makes no communicator and starts no thread.
 */
#ifndef ATTUNE_DISTRIBUTED_H
#define ATTUNE_DISTRIBUTED_H

#include <attune/attune.h>

#ifdef __cplusplus
extern "C" {
#endif

/* -------------------------------------------------------------------------------------------------------- partition */

/* How rows and keys are dealt to the ranks. They are dealt in chunks, each of consecutive positions. */
typedef enum attune_layout {
    /* Equal numbers of chunks, and the most work of a rank within 2 % of the mean where chunks allow it: the sequence
     * is divided by two cuts, and each part again, where work is equal and rows need few keys of other parts; then
     * chunks are swapped between ranks. A rank has few runs. */
    ATTUNE_LAYOUT_BALANCED = 0,
    /* Unequal numbers: each rank has consecutive rows, cut so that the most work of a rank is least. */
    ATTUNE_LAYOUT_CUT = 1,
    ATTUNE_LAYOUT_CONTIGUOUS = 2, /* equal numbers of consecutive chunks */
    ATTUNE_LAYOUT_ZIGZAG = 3,     /* of 2 * ranks parts, rank r has parts r and 2 * ranks - 1 - r */
    ATTUNE_LAYOUT_STRIPED = 4     /* chunk i belongs to rank i % ranks */
} attune_layout;

/* The most ranks of a partition. */
#define ATTUNE_MAX_RANKS 4096

/* Parameters of a partition. */
typedef struct attune_partition_desc {
    uint32_t struct_size;
    uint32_t ranks; /* 1 to ATTUNE_MAX_RANKS */
    attune_layout layout;
    /* Rows of a chunk, a multiple of the mask's q_block and kv_block; the last chunk may be shorter. 0 = about a
     * 64th of a rank's rows or a block, fewer where larger chunks cannot be balanced; the fewest with CUT. */
    int64_t chunk;
    /* Time of a partial block as a multiple of that of a full block, 0.01 to 100. 0 = estimated from the instructions
     * of the mask expression, against head_dim 128. */
    double partial_cost;
    /* ATTUNE_LAYOUT_CUT: the most rows of a rank, as a multiple of the mean, at least 1. 0 = 4. */
    double most_rows;
} attune_partition_desc;

/* Consecutive rows or keys of the whole sequence. */
typedef struct attune_run {
    int64_t start, count;
    uint32_t rank; /* that has them */
} attune_run;

/* The rows and keys of each rank, and the keys that it needs of others. */
typedef struct attune_partition attune_partition;

/*
 * Deals the rows and the keys of a mask to ranks. Where q_len equals kv_len, the rank that has a row has the key of the
 * same position. Otherwise keys are dealt by the same layout, and contiguously with BALANCED and CUT. Ranks may be left
 * without rows or keys if there are fewer chunks than ranks. A rank with rows but no keys, whose rows need none, is
 * given the first block of keys to fetch, because a call has at least one key. The work of a rank is the cost of the
 * blocks of its rows, over all batches and heads of the mask's lists: a list that they share counts once
 * (attune_mask_lists). UNSUPPORTED for masks whose lists are on a device (attune_mask_create_tensor). The mask is not
 * needed afterwards.
 */
ATTUNE_API attune_status attune_partition_create(attune_instance *instance, const attune_partition_desc *desc,
                                                 const attune_mask *mask, attune_partition **partition);
ATTUNE_API void attune_partition_destroy(attune_partition *partition);

/* The three lists of a rank. */
typedef enum attune_run_kind {
    ATTUNE_RUN_ROWS = 1, /* rows that the rank has */
    ATTUNE_RUN_KEYS = 2, /* keys that the rank has */
    ATTUNE_RUN_NEEDS = 3 /* keys of other ranks that its rows need: those of the blocks in the mask's lists */
} attune_run_kind;

/*
 * Returns a list of runs, in ascending order of start; the array is valid as long as the partition. The rank's own
 * tensors hold its rows, or keys, in this order. Rank a sends to rank b those runs of b's needs whose rank is a. Any
 * thread.
 */
ATTUNE_API attune_status attune_partition_runs(const attune_partition *partition, uint32_t rank, attune_run_kind kind,
                                               const attune_run **runs, uint32_t *count);

/* Balance and traffic of a partition. */
typedef struct attune_partition_stats {
    uint32_t struct_size;
    uint32_t ranks;
    int64_t chunk;             /* as chosen */
    double imbalance;          /* most work of a rank / mean; 1 if there is no work */
    double fetched;            /* keys fetched / keys of all other ranks, which a ring fetches, of the rank where this
                                  is largest; 0 with one rank */
    int64_t fetched_keys;      /* over all ranks */
    int64_t most_rows;         /* of a rank */
    int64_t most_keys;         /* likewise */
    int64_t most_fetched_keys; /* likewise */
    double partial_cost;       /* as given or estimated */
} attune_partition_stats;

/* Computes statistics. Any thread. */
ATTUNE_API attune_status attune_partition_stats_get(const attune_partition *partition, attune_partition_stats *stats);

/* Returns the work of a rank, in units of a full block of one batch and head. 0 if there is no such rank. Any thread.
 */
ATTUNE_API double attune_partition_work(const attune_partition *partition, uint32_t rank);

/* A hash of what every rank must agree on: the runs of all ranks, the lengths and the mask's expression. The same on
 * every machine. Any thread. */
ATTUNE_API void attune_partition_hash(const attune_partition *partition, uint64_t hash[2]);

/* -------------------------------------------------------------------------------------------------------- transport */

/* Bytes to send to a rank, or to receive from it. */
typedef struct attune_message {
    uint32_t peer;
    attune_buffer *buffer; /* the k, v or q of the call, or its workspace */
    uint64_t offset;       /* bytes from the beginning of the buffer, whatever memory is */
    uint64_t size;         /* bytes, at least 1 */
    void *memory;          /* address of the bytes in host memory on the CPU, and on any device with
                              attune_transport.host_memory; NULL elsewhere */
} attune_message;

/*
 * How ranks communicate. All callbacks are called on the thread that called attune, and must not call attune, except
 * for attune_buffer_read and attune_buffer_write. They return ATTUNE_OK or the status with which the call of attune is
 * to fail. All ranks make the same calls in the same order.
 */
typedef struct attune_transport {
    uint32_t struct_size;
    uint32_t rank; /* below size */
    uint32_t size; /* number of ranks */
    void *user;    /* passed to the callbacks */
    /* Collects `size` bytes of host memory of every rank into all, in the order of ranks (MPI_Allgather). Called by
     * attune_distributed_create and attune_decode_create alone. */
    attune_status (*gather)(void *user, const void *mine, void *all, size_t size);
    /*
     * Sends and receives. The n-th message from rank a to rank b matches the n-th that b receives from a, and has the
     * same size. Messages are in ascending order of peer. Either all are complete on return; or they are enqueued to
     * run after the work in the queue, and before the work that is enqueued after `finish`. The array is valid until
     * `finish` returns.
     */
    attune_status (*exchange)(void *user, const attune_message *sends, uint32_t send_count,
                              const attune_message *receives, uint32_t receive_count, attune_queue *queue);
    /* Completes an exchange, or ends the reads of lend: returns when its messages are complete, or makes the queue wait
     * for them. Between exchange and finish attune computes, as on the rank's own keys. A call has one exchange or
     * several. NULL = messages are complete when exchange returns. */
    attune_status (*finish)(void *user, attune_queue *queue);
    /* This rank failed: the present and all later calls of gather, exchange and finish fail on every rank (MPI_Abort,
     * ncclCommAbort). Called at most once by each failing call; may be called on several ranks. Once abort, or a call
     * that failed for another rank's, has returned, no message of this rank is read or written any more: its memory may
     * be freed. */
    void (*abort)(void *user);
    /* Messages go through host memory, as with MPI or threads, whatever the ranks' devices are: from a device other
     * than the CPU attune copies what is sent before exchange, after the work in the queue, and to it what was received
     * after finish. The call waits for these copies; what it computes between exchange and finish runs meanwhile.
     * The memory is allocated by attune_distributed_create and attune_decode_create. */
    bool host_memory;
    /* The time that a received byte takes, as a multiple of that of a byte which the device reads or writes in its own
     * memory: about 12 over NVLink, 50 and more over PCIe or a network. For ATTUNE_OVERLAP_AUTO. 0 = not known. */
    double byte_cost;
    /*
     * For devices that read each other's memory in place: as exchange, but nothing is copied. Sets buffer and offset of
     * `receives`, which are given with peer and size, to what these peers send. Work that is enqueued between lend and
     * `finish` may read it: it runs after the peers' work that was in their queues before they lent. Work that is
     * enqueued after the next lend with the same peers runs after all reads of what was lent before. A rank may receive
     * less than its peers send: nothing of the last ones. Receives are valid until lend returns, sends that are
     * received until the next lend has returned. NULL = messages are sent; it is set on every rank or on none. A
     * transport of one's own that calls another's callbacks must do so here as well, or set it to NULL; an engine sets
     * it to NULL on every rank where other devices cannot read its q, k and v.
     */
    attune_status (*lend)(void *user, const attune_message *sends, uint32_t send_count, attune_message *receives,
                          uint32_t receive_count, attune_queue *queue);
    /* Waits until no device reads what this rank has lent, so that its memory may be freed. Needed beside lend, as is
     * finish. Called by attune_decode_destroy, also after an abort. */
    void (*reclaim)(void *user);
} attune_transport;

/* -------------------------------------------------------------------------------------------------------- execution */

/* One rank's share of attention over several devices. */
typedef struct attune_distributed attune_distributed;

/* The work of a rank while keys of others arrive. Each is bitwise reproducible; they differ in rounding. */
typedef enum attune_overlap {
    /* OFF where the bytes that a rank receives, times transport.byte_cost, are fewer than those that the second launch
     * and the merge read and write; ON otherwise, and where byte_cost is 0. READ in place of OFF where transport.lend
     * is set, if all ranks compute their keys in one launch, among them those that have only keys of their own, or
     * none. A call whose memory another device cannot read fails then: transport.lend NULL sends keys. */
    ATTUNE_OVERLAP_AUTO = 0,
    /* It computes its own keys, then those of others, and merges: messages are hidden, for a second launch, two results
     * in f32 and a merge. */
    ATTUNE_OVERLAP_ON = 1,
    /* It copies its own keys beside those that arrive, and computes all in one launch. The workspace has the own keys
     * too. */
    ATTUNE_OVERLAP_OFF = 2,
    /* As OFF, but forwards a quarter of the heads is sent first, and computed while the others arrive, in two launches,
     * unless a rank has another way, or heads differ (the mask or the score depends on the head, there are sinks, or
     * desc.token_major is set). By name alone: READ is faster. */
    ATTUNE_OVERLAP_HEADS = 3,
    /* As OFF, but where every rank has this, by name or automatically, and transport.lend is set, nothing is sent: one
     * launch of a rank copies the keys of others from where they are, beside its own. */
    ATTUNE_OVERLAP_READ = 4
} attune_overlap;

/* Parameters of attune_distributed_create. */
typedef struct attune_distributed_desc {
    uint32_t struct_size;
    const attune_transport *transport; /* copied; what it refers to must outlive the object */
    const attune_partition *partition; /* of transport->size ranks */
    const attune_mask *mask;           /* that the partition was made of, on every rank */
    /*
     * The problem over the whole sequence, with its batch exactly. q_len and kv_len are 0 or the mask's; the mask's
     * expression and blocks are taken from `mask`. direction selects attune_distributed_forward or
     * attune_distributed_backward. segments, row_max and tokens are not available. capture_gradient_elements, whose
     * sums all ranks exchange in each call, is the same on every rank.
     */
    const attune_problem *problem;
    const attune_kernel_options *options; /* NULL = automatic */
    /* The keys of all heads of a position are adjacent in memory, [batch, keys, kv_heads, head_dim], and likewise the
     * values. Otherwise those of all positions of a head are, [batch, kv_heads, keys, head_dim]. */
    bool token_major;
    attune_overlap overlap; /* each rank has its own */
} attune_distributed_desc;

/*
 * Prepares the calls of this rank: cuts the mask, creates the plan and uploads to the device. All ranks must call it.
 * It returns an error on every rank if one of them fails, or if the ranks' partitions or problems differ
 * (INVALID_ARGUMENT, naming a rank that differs). A rank that has no desc, or no transport with a rank, a size, gather,
 * exchange and abort, cannot tell the others. Neither desc nor what it points to is needed afterwards, except as stated
 * above.
 */
ATTUNE_API attune_status attune_distributed_create(attune_device *device, const attune_distributed_desc *desc,
                                                   attune_distributed **distributed);
ATTUNE_API void attune_distributed_destroy(attune_distributed *distributed);
/* Returns the bytes of workspace of a call on this rank, which include the keys that it receives. */
ATTUNE_API uint64_t attune_distributed_workspace_size(const attune_distributed *distributed);

/*
 * Computes attention for the rows of this rank over the keys of all ranks. All ranks must call it.
 *
 * The tensors are those of the rank: q [batch, heads, rows, head_dim], k and v [batch, kv_heads, keys, ...], o and lse
 * likewise, in the order of attune_partition_runs. Tensors of a rank without rows (q, o, lse) or without keys (k, v)
 * have buffer NULL. k and v have no gaps between the rows that they send: the strides of desc.token_major or of its
 * opposite. In expressions b, h, q, kv, q_len and kv_len are those of the whole sequence; captures are whole on every
 * rank. mask and segments must be NULL. The first byte of the workspace must be aligned to 8 bytes on the CPU.
 *
 * The own keys are computed while keys of others arrive, then those; the two results, in f32 (f64 if o is), are merged.
 * Or all are computed once they have arrived (desc.overlap). Repeated calls give bitwise equal results. On one rank
 * they are those of attune_forward.
 *
 * A call that fails calls transport.abort, so that no rank waits for this one. Afterwards the object can only be
 * destroyed. One call at a time for each object; otherwise as attune_forward, except that with a transport whose
 * messages run in the queue `completion` covers attune's own work: what the rank sends (k, v, and the workspace) may be
 * changed by later work of the queue, and by other work after the last message.
 */
ATTUNE_API attune_status attune_distributed_forward(attune_distributed *distributed, attune_queue *queue,
                                                    const attune_forward_args *args, attune_completion *completion);

/*
 * Computes the gradients of attune_distributed_forward, with an object whose problem.direction is ATTUNE_BACKWARD. All
 * ranks must call it. The tensors are those of the rank, as in forward: o and lse are what it computed, d_q is of the
 * rank's rows, d_k and d_v of its keys, with any strides. Those of a rank without rows (d_o, d_lse, d_q) or without
 * keys (d_k, d_v) have buffer NULL.
 *
 * Keys are sent again. Gradients of keys that other ranks needed are returned to the rank that has the keys, and summed
 * there in the order of ranks, in f32 (f64 if k is) until the sum is rounded.
 *
 * Gradients of captures are summed over all ranks: each adds the whole sum, with the same bits, to the contents of its
 * capture_gradients; those of sinks likewise are the whole sum. All ranks must ask for the same capture_gradients,
 * with a contiguous last dimension if they have four.
 *
 * Repeated calls give bitwise equal results, unless the options have DETERMINISTIC off. On one rank they are those of
 * attune_backward. Otherwise as attune_distributed_forward.
 */
ATTUNE_API attune_status attune_distributed_backward(attune_distributed *distributed, attune_queue *queue,
                                                     const attune_backward_args *args, attune_completion *completion);

/* ----------------------------------------------------------------------------------------------------------- decode */

/* Which queries a rank has, and whose results it is given: with `all` sequences or heads, those from all * rank / size
 * to all * (rank + 1) / size - 1. */
typedef enum attune_query_split {
    ATTUNE_QUERIES_BY_SEQUENCE = 0,
    ATTUNE_QUERIES_BY_HEAD = 1 /* query heads */
} attune_query_split;

/* Decode over keys that stay with their ranks, where few queries attend to many keys. */
typedef struct attune_decode attune_decode;

/* Parameters of attune_decode_create. */
typedef struct attune_decode_desc {
    uint32_t struct_size;
    const attune_transport *transport; /* copied; what it refers to must outlive the object */
    /*
     * The problem of all ranks: batch, heads and q_len are those of every call, kv_len is the most keys of a sequence,
     * over all ranks. direction is ATTUNE_FORWARD; mask, block_mask, segments, row_max and tokens are not available: a
     * score expression forbids pairs by -inf.
     */
    const attune_problem *problem;
    const attune_kernel_options *options; /* NULL = automatic */
    attune_query_split split;
    /* Keys are dealt to ranks in turn, `chunk` at a time: rank r has keys [i * chunk, (i + 1) * chunk) for i % size =
     * r, in this order. No rank then has all new keys. 0 = 256. */
    int64_t chunk;
} attune_decode_desc;

/* Prepares the calls of this rank; errors as attune_distributed_create. */
ATTUNE_API attune_status attune_decode_create(attune_device *device, const attune_decode_desc *desc,
                                              attune_decode **decode);
ATTUNE_API void attune_decode_destroy(attune_decode *decode);
/* Returns the bytes of workspace of a call on this rank. */
ATTUNE_API uint64_t attune_decode_workspace_size(const attune_decode *decode);

/*
 * Computes attention over the first kv_len keys, which is the same on every rank; all ranks must call it. q, o and lse
 * are those of the rank's queries: [sequences, heads, q_len, ...], or [batch, heads of the rank, q_len, ...]; q has no
 * gaps. k and v are the rank's keys among the first kv_len, of all sequences and KV heads, with any strides. Tensors of
 * a rank without queries (q, o, lse) or without keys (k, v) have buffer NULL. In expressions b, h, q, kv, q_len and
 * kv_len are those of all ranks together; captures are whole on every rank.
 *
 * Queries are sent to all ranks that have keys. Results over the keys of each rank, in f32 (f64 if o is), and their LSE
 * are returned and merged in the order of ranks: repeated calls give bitwise equal results, and on one rank those of
 * attune_forward. With transport.lend nothing is sent: ranks read each other's queries and results where they are; on
 * CUDA these may be merged with other roundings, alike in every call. Otherwise as attune_distributed_forward.
 */
ATTUNE_API attune_status attune_distributed_decode(attune_decode *decode, attune_queue *queue,
                                                   const attune_forward_args *args, int64_t kv_len,
                                                   attune_completion *completion);

#ifdef __cplusplus
}
#endif

#endif
