/* SPDX-License-Identifier: MIT */
/*
 * Decode over keys that are dealt to ranks: queries go to all ranks that have keys, each computes them over its own,
 * and partial results return to the ranks whose queries they are, which merge them. Calls do not allocate.
 *
 * With transport.lend nothing is sent: a rank gathers the queries from where other ranks have them, in one launch, and
 * merges results that it reads from there. Results are then in memory of the object, because other ranks read them
 * after the call. They are written again after the next step's queries were lent, hence after all reads; the queries
 * are read before the results are lent, hence before the merge. Where all ranks have their results in as many splits,
 * these are merged as they are; and the queries of two ranks by head are not gathered: to the kernel they are two
 * batches, which lie as far apart as they do.
 */
#include "distributed/ranks.h"

#include <string.h>

#include "plan/plan.h"

struct attune_decode {
    attune_distributed base; /* first */
    attune_query_split split;
    int64_t chunk;
    int64_t q_len;                /* of a call */
    uint64_t q_at, o_at, lse_row; /* of all queries: q and o, and where their LSE begins after o */
    uint64_t mine_at, mine_size;  /* results of this rank's queries, of each rank; their LSE begins at mine_lse */
    uint64_t mine_lse;
    bool lends;
    attune_buffer *lent; /* o and LSE of all queries, for other ranks to read, then splits; NULL = they are sent */
};

/* The queries of a rank: `blocks` blocks of rows that are adjacent, in q of all queries too. */
typedef struct share {
    int64_t first, count; /* sequences or heads */
    int64_t blocks, rows; /* rows of a block */
} share;

static share share_of(const attune_decode *d, uint32_t rank)
{
    const attune__shape *s = &d->base.shape;
    const bool heads = d->split == ATTUNE_QUERIES_BY_HEAD;
    const int64_t all = heads ? s->heads : s->batch, size = (int64_t)d->base.transport.size;
    share own = {.first = all * (int64_t)rank / size};
    own.count = all * ((int64_t)rank + 1) / size - own.first;
    own.blocks = heads ? s->batch : 1;
    own.rows = own.count * d->q_len * (heads ? 1 : s->heads);
    return own;
}

/* The row of q of all queries where a block of a rank begins. */
static int64_t block_row(const attune_decode *d, const share *own, int64_t block)
{
    const int64_t heads = d->base.shape.heads;
    return (d->split == ATTUNE_QUERIES_BY_HEAD ? block * heads + own->first : own->first * heads) * d->q_len;
}

/* Keys of a rank among the first `keys`. */
static int64_t keys_of(const attune_decode *d, uint32_t rank, int64_t keys)
{
    const int64_t cycle = d->chunk * (int64_t)d->base.transport.size, rest = keys % cycle - d->chunk * (int64_t)rank;
    return keys / cycle * d->chunk + (rest < 0 ? 0 : rest < d->chunk ? rest : d->chunk);
}

/* ----------------------------------------------------------------------------------------------------------- create */

static attune_status upload(attune_device *device, int64_t count, int64_t chunk, int64_t step, int64_t first,
                            attune_buffer **buffer)
{
    const attune_allocator *allocator = &device->host.allocator;
    int32_t *at = attune__alloc_raw(allocator, (size_t)count, sizeof *at);
    if (!at)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    for (int64_t i = 0; i < count; i++)
        at[i] = (int32_t)(i / chunk * step + first + i % chunk);
    attune_status status = attune_buffer_create(device, (uint64_t)count * sizeof *at, buffer);
    if (status == ATTUNE_OK)
        status = attune_buffer_write(*buffer, 0, at, (uint64_t)count * sizeof *at);
    attune__free(allocator, at);
    return status;
}

static attune_status check_problem(const attune_decode *d, const attune_problem *p)
{
    if (p->direction != ATTUNE_FORWARD || p->mask || p->block_mask || p->segments || p->row_max || p->tokens)
        return attune__fail(ATTUNE_UNSUPPORTED,
                            "problem.%s is set, which decode over ranks does not have: leave it 0%s",
                            p->direction    ? "direction"
                            : p->mask       ? "mask"
                            : p->block_mask ? "block_mask"
                            : p->segments   ? "segments"
                            : p->row_max    ? "row_max"
                                            : "tokens",
                            p->mask || p->block_mask ? ", and forbid pairs by a score of -inf" : "");
    if (d->split != ATTUNE_QUERIES_BY_SEQUENCE && d->split != ATTUNE_QUERIES_BY_HEAD)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.split is %d, expected an attune_query_split", (int)d->split);
    if (d->chunk < 1 || d->chunk > INT32_MAX)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.chunk is %lld, expected 1 to %d", (long long)d->chunk,
                            INT32_MAX);
    return ATTUNE_OK;
}

static attune_status make_plan(attune_decode *made, const attune_problem *problem, const attune_kernel_options *options)
{
    attune_distributed *d = &made->base;
    attune_problem p = *problem;
    attune_expr *score = NULL;
    const int64_t most = keys_of(made, d->transport.rank, d->shape.kv_len);
    p.kv_len = most ? most : 1;
    p.lse = true;
    if (d->transport.size > 1) {
        ATTUNE__TRY(upload(d->device, made->q_len, made->q_len, 0, 0, &d->positions));
        ATTUNE__TRY(upload(d->device, p.kv_len, made->chunk, made->chunk * (int64_t)d->transport.size,
                           made->chunk * (int64_t)d->transport.rank, &d->parts[ATTUNE__OWN].positions));
        ATTUNE__TRY(attune__merger_make(d->device, &d->merger));
    }
    ATTUNE__TRY(attune__distributed_score(d, p.score, &score));
    p.score = score;
    const attune_status status = attune__plan_create(d->device, &p, options, d->transport.size > 1, &d->plan);
    attune__expr_release(score);
    return status;
}

/* The bytes of the exchange that has most: of queries, or of results with their LSE. */
static uint64_t exchanged_bytes(const attune_decode *made)
{
    const attune__shape *s = &made->base.shape;
    const uint64_t size = made->base.transport.size, real = attune_dtype_size(attune__shape_real(s));
    const share own = share_of(made, made->base.transport.rank);
    const uint64_t rows =
        (uint64_t)(s->batch * s->heads * made->q_len) + (uint64_t)(own.blocks * own.rows) * (size - 1);
    const uint64_t queries = s->head_dim * attune_dtype_size(s->q_dtype), results = (s->head_dim_v + 1) * real;
    return rows * (queries > results ? queries : results);
}

/* Of o and LSE of all queries. */
static uint64_t result_bytes(const attune_decode *made)
{
    const attune__shape *s = &made->base.shape;
    return made->lse_row + (uint64_t)(s->batch * s->heads * made->q_len) * attune_dtype_size(attune__shape_real(s));
}

/* The splits of this rank's calls, if they can be merged as they are. */
static uint32_t find_splits(const attune_decode *made)
{
    const attune_distributed *d = &made->base;
    const attune_plan_choice *choice = &d->plan->decision.choice;
    const bool can = made->lends && d->device->backend->merge_splits && !d->shape.sinks &&
                     d->transport.size <= ATTUNE__MERGE_PARTS && choice->decode && !choice->short_q_len &&
                     choice->split_kv > 1 && choice->split_kv * d->transport.size <= ATTUNE__MERGE_SPLITS;
    return can ? choice->split_kv : 0;
}

/* Where they are in memory that is lent: at the beginning of the plan's workspace. */
static uint64_t splits_at(const attune_decode *made)
{
    return attune__round_up64(result_bytes(made), 256);
}

static void lay_out(attune_decode *made)
{
    attune_distributed *d = &made->base;
    const attune__shape *s = &d->shape;
    const uint32_t size = d->transport.size;
    const share own = share_of(made, d->transport.rank);
    const attune_dtype real = attune__shape_real(s);
    const uint64_t rows = (uint64_t)(s->batch * s->heads * made->q_len), mine = (uint64_t)(own.blocks * own.rows);
    const uint64_t element = attune_dtype_size(real);
    if (size > 1) {
        made->lse_row = attune__round_up64(rows * s->head_dim_v * element, 256);
        made->q_at = attune__distributed_reserve(d, rows * s->head_dim * attune_dtype_size(s->q_dtype));
        if (!made->lends) {
            made->o_at = attune__distributed_reserve(d, result_bytes(made));
            made->mine_lse = attune__round_up64(mine * s->head_dim_v * element, 256);
            made->mine_size = made->mine_lse + attune__round_up64(mine * element, 256);
            made->mine_at = attune__distributed_reserve(d, made->mine_size * size);
        }
        d->merge_at = attune__distributed_reserve(d, attune__merge_workspace(real, mine, s->head_dim_v, size));
    }
    d->plan_at = attune__distributed_reserve(d, attune_plan_workspace_size(d->plan));
}

static attune_status prepare(attune_decode *made, const attune_decode_desc *desc, attune__hash *hash)
{
    attune_distributed *d = &made->base;
    attune_problem p;
    ATTUNE__TRY(attune__distributed_check_transport(&d->transport));
    ATTUNE__TRY(attune__check_not_null(desc->problem, "desc.problem"));
    ATTUNE__TRY(attune__desc_read(&p, sizeof p, desc->problem, sizeof p, "problem"));
    ATTUNE__TRY(check_problem(made, &p));
    ATTUNE__TRY(attune__shape_from_problem(&p, &d->shape));
    made->q_len = d->q_len = d->shape.q_len;
    d->rows = made->q_len;
    ATTUNE__TRY(make_plan(made, &p, desc->options));
    const size_t blocks = (size_t)share_of(made, 0).blocks;
    if (blocks > UINT32_MAX / 8 / d->transport.size)
        return attune__fail(ATTUNE_UNSUPPORTED, "queries by head have %zu messages to each of %u ranks: use fewer",
                            blocks, d->transport.size);
    ATTUNE__TRY(attune__distributed_make_messages(d, blocks * 4 * d->transport.size, exchanged_bytes(made)));
    lay_out(made);
    d->splits = find_splits(made);
    if (made->lends)
        ATTUNE__TRY(attune_buffer_create(
            d->device, splits_at(made) + (d->splits ? attune_plan_workspace_size(d->plan) : 0), &made->lent));
    attune__hash_add(hash, made->lends);
    attune__hash_add(hash, (uint64_t)made->split);
    attune__hash_add(hash, (uint64_t)made->chunk);
    attune__hash_add(hash, (uint64_t)d->shape.q_len);
    attune__hash_add(hash, (uint64_t)d->shape.kv_len);
    attune__distributed_hash(d, p.score, hash);
    return ATTUNE_OK;
}

attune_status attune_decode_create(attune_device *device, const attune_decode_desc *desc, attune_decode **decode)
{
    attune_decode_desc given;
    attune_transport transport;
    if (decode)
        *decode = NULL;
    ATTUNE__TRY(attune__desc_read(&given, sizeof given, desc, sizeof given, "desc"));
    ATTUNE__TRY(attune__distributed_transport(given.transport, &transport));
    ATTUNE__TRY(attune__distributed_begin_create(&transport, device, decode, "decode"));
    attune_decode *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made) {
        transport.abort(transport.user);
        return ATTUNE_OUT_OF_HOST_MEMORY;
    }
    made->base.device = attune__device_retain(device);
    made->base.transport = transport;
    made->split = given.split;
    made->chunk = given.chunk ? given.chunk : 256;
    made->lends = transport.lend && transport.size > 1;
    attune__hash hash = attune__hash_begin();
    /* A lost device too is an error of every rank. */
    attune_status status = attune__device_check(device);
    if (status == ATTUNE_OK)
        status = prepare(made, &given, &hash);
    status = attune__distributed_agree(&made->base, hash, status);
    if (status == ATTUNE_OK)
        *decode = made; /* NOLINT(clang-analyzer-core.NullDereference): NULL was refused */
    else
        attune_decode_destroy(made);
    return status;
}

void attune_decode_destroy(attune_decode *decode)
{
    if (decode && decode->lent) {
        decode->base.transport.reclaim(decode->base.transport.user);
        attune_buffer_destroy(decode->lent);
    }
    attune_distributed_destroy((attune_distributed *)decode);
}

uint64_t attune_decode_workspace_size(const attune_decode *decode)
{
    return decode ? decode->base.workspace : 0;
}

/* ------------------------------------------------------------------------------------------------------------ calls */

typedef struct call {
    attune__distributed_call base;
    const attune_decode *d;
    attune_forward_args args;
    int64_t kv_len;
    share own;
    bool in_place;                  /* the queries of the other rank are not gathered, ... */
    attune_message theirs;          /* ... but here */
    attune_tensor q, o, lse;        /* of this rank */
    const attune_message *borrowed; /* results of other ranks, with transport.lend */
    double seconds;
} call;

/* q, o or LSE of all queries. */
static attune_tensor whole(const call *c, attune_buffer *buffer, uint64_t at, attune_dtype dtype, uint32_t columns)
{
    const attune__shape *s = &c->d->base.shape;
    const attune_tensor like = {.size = {s->batch, s->heads, c->d->q_len, columns}};
    return attune__workspace_tensor(buffer, at, dtype, &like, columns ? 4 : 3);
}

static attune_tensor whole_q(const call *c)
{
    const attune__shape *s = &c->d->base.shape;
    return whole(c, c->args.workspace, c->args.workspace_offset + c->d->q_at, s->q_dtype, s->head_dim);
}

/* Where results begin: o, then LSE. */
typedef struct place {
    attune_buffer *buffer;
    uint64_t offset;
} place;

/* The results of another rank. */
static place borrowed_from(const call *c, uint32_t rank)
{
    const attune_message *m = c->borrowed;
    while (m->peer != rank)
        m++;
    return (place){m->buffer, m->offset};
}

/* The results of this rank. */
static place own_results(const call *c)
{
    if (c->d->base.splits)
        return (place){c->d->lent, splits_at(c->d)};
    return c->d->lent ? (place){c->d->lent, 0} : (place){c->args.workspace, c->args.workspace_offset + c->d->o_at};
}

static attune_tensor whole_o(const call *c, place at)
{
    const attune__shape *s = &c->d->base.shape;
    return whole(c, at.buffer, at.offset, attune__shape_real(s), s->head_dim_v);
}

static attune_tensor whole_lse(const call *c, place at)
{
    return whole(c, at.buffer, at.offset + c->d->lse_row, attune__shape_real(&c->d->base.shape), 0);
}

/* The part of a tensor of all queries that is a rank's. */
static attune_tensor part_of(const call *c, const share *of, attune_tensor t)
{
    const uint32_t dimension = c->d->split == ATTUNE_QUERIES_BY_HEAD;
    t.offset += (uint64_t)(of->first * t.stride[dimension]) * attune_dtype_size(t.dtype);
    t.size[dimension] = of->count;
    return t;
}

/* The results of this rank's queries that another rank computed. */
static attune_tensor returned(const call *c, uint32_t rank, bool of_lse)
{
    const attune__shape *s = &c->d->base.shape;
    attune_tensor like = of_lse ? whole_lse(c, own_results(c)) : whole_o(c, own_results(c));
    like.size[c->d->split == ATTUNE_QUERIES_BY_HEAD] = c->own.count;
    const uint64_t at = c->d->mine_at + rank * c->d->mine_size + (of_lse ? c->d->mine_lse : 0);
    return attune__workspace_tensor(c->args.workspace, c->args.workspace_offset + at,
                                    of_lse ? attune__shape_real(s) : like.dtype, &like, of_lse ? 3 : 4);
}

/* The columns of a row: 1 of LSE. */
static int64_t columns_of(const attune_tensor *t)
{
    return t->rank == 4 ? t->size[3] : 1;
}

/* Adds the messages of the blocks of a rank: in a tensor of all queries, or in one of that rank's alone. */
static uint32_t list_blocks(const call *c, uint32_t peer, uint32_t owner, const attune_tensor *t, bool of_all,
                            attune_message *to)
{
    const share own = share_of(c->d, owner);
    const uint64_t element = attune_dtype_size(t->dtype), row = (uint64_t)columns_of(t) * element;
    if (!own.rows)
        return 0;
    for (int64_t i = 0; i < own.blocks; i++) {
        const int64_t first = of_all ? block_row(c->d, &own, i) : i * own.rows;
        to[i] = (attune_message){.peer = peer,
                                 .buffer = t->buffer,
                                 .offset = t->offset + (uint64_t)first * row,
                                 .size = (uint64_t)own.rows * row};
        to[i].memory = attune__distributed_memory(t->buffer, to[i].offset);
    }
    return (uint32_t)own.blocks;
}

static bool has_keys(const call *c, uint32_t rank)
{
    return keys_of(c->d, rank, c->kv_len) > 0;
}

static attune_status exchange_queries(const call *c)
{
    const attune_distributed *d = &c->d->base;
    const attune_tensor all = whole_q(c);
    const uint32_t rank = d->transport.rank;
    attune_message *to = d->messages;
    uint32_t sends = 0, receives = 0;
    for (uint32_t peer = 0; peer < d->transport.size; peer++)
        if (peer != rank && has_keys(c, peer))
            sends += list_blocks(c, peer, rank, &c->q, false, to + sends);
    to += sends;
    for (uint32_t peer = 0; peer < d->transport.size && has_keys(c, rank); peer++)
        if (peer != rank)
            receives += list_blocks(c, peer, peer, &all, true, to + receives);
    return attune__distributed_exchange(&c->base, sends, receives);
}

static attune_status exchange_results(const call *c)
{
    const attune_distributed *d = &c->d->base;
    const attune_tensor o = whole_o(c, own_results(c)), lse = whole_lse(c, own_results(c));
    const uint32_t rank = d->transport.rank;
    attune_message *to = d->messages;
    uint32_t sends = 0, receives = 0;
    for (uint32_t peer = 0; peer < d->transport.size && has_keys(c, rank); peer++)
        if (peer != rank) {
            sends += list_blocks(c, peer, peer, &o, true, to + sends);
            sends += list_blocks(c, peer, peer, &lse, true, to + sends);
        }
    to += sends;
    for (uint32_t peer = 0; peer < d->transport.size; peer++)
        if (peer != rank && has_keys(c, peer)) {
            const attune_tensor their_o = returned(c, peer, false), their_lse = returned(c, peer, true);
            receives += list_blocks(c, peer, rank, &their_o, false, to + receives);
            receives += list_blocks(c, peer, rank, &their_lse, false, to + receives);
        }
    return attune__distributed_exchange(&c->base, sends, receives);
}

/* ---------------------------------------------------------------------------------------------------------- lending */

/* One message to a peer: all of a rank's queries, which have no gaps, or all results. */
static attune_message lending(uint32_t peer, attune_buffer *buffer, uint64_t offset, uint64_t size)
{
    return (attune_message){.peer = peer, .buffer = buffer, .offset = offset, .size = size};
}

static uint64_t query_bytes(const call *c, const share *of)
{
    const attune__shape *s = &c->d->base.shape;
    return (uint64_t)(of->blocks * of->rows) * s->head_dim * attune_dtype_size(s->q_dtype);
}

/* The queries of a rank, where it has them, and where they are gathered. */
static attune__copied queries_at(const call *c, const share *of, attune_buffer *buffer, uint64_t offset)
{
    const attune_tensor to = part_of(c, of, whole_q(c));
    return (attune__copied){.from = attune__workspace_tensor(buffer, offset, to.dtype, &to, 4), .to = to};
}

static attune_status gather_queries(call *c, const attune_message *from, uint32_t count)
{
    attune__copied parts[ATTUNE__MERGE_PARTS];
    uint32_t listed = 0;
    if (c->own.count)
        parts[listed++] = queries_at(c, &c->own, c->q.buffer, c->q.offset);
    for (uint32_t i = 0; i < count; i++) {
        const share theirs = share_of(c->d, from[i].peer);
        if (listed == ATTUNE__MERGE_PARTS) {
            ATTUNE__TRY(attune__distributed_copy(&c->base, parts, listed));
            listed = 0;
        }
        parts[listed++] = queries_at(c, &theirs, from[i].buffer, from[i].offset);
    }
    return listed ? attune__distributed_copy(&c->base, parts, listed) : ATTUNE_OK;
}

/* The bytes from this rank's queries to the other's. */
static int64_t distance_to(const call *c, const attune_message *theirs)
{
    return c->base.d->device->backend->buffer_distance(c->q.buffer, theirs->buffer) + (int64_t)theirs->offset -
           (int64_t)c->q.offset;
}

/* Whether this rank's queries and the other's are two batches of half of the heads, as the decode kernel reads them. */
static bool are_batches(const call *c, const attune_message *theirs)
{
    const attune_distributed *d = &c->d->base;
    const attune__shape *s = &d->shape;
    const int64_t group = s->heads / s->kv_heads;
    return d->splits && d->transport.size == 2 && c->d->split == ATTUNE_QUERIES_BY_HEAD && s->batch == 1 &&
           c->own.count * 2 == s->heads && c->own.count % group == 0 && !d->plan->score &&
           has_keys(c, d->transport.rank) && d->device->backend->buffer_distance &&
           distance_to(c, theirs) % (int64_t)attune_dtype_size(s->q_dtype) == 0;
}

/* A tensor of all heads, as two batches. */
static attune_tensor halves_of(attune_tensor t)
{
    t.size[0] = 2;
    t.size[1] /= 2;
    t.stride[0] = t.size[1] * t.stride[1];
    return t;
}

static void take_batches(const call *c, attune__forward *f)
{
    const bool first = c->base.d->transport.rank == 0;
    const int64_t step = distance_to(c, &c->theirs) / (int64_t)attune_dtype_size(c->q.dtype);
    f->q = halves_of(f->q);
    f->q.buffer = first ? c->q.buffer : c->theirs.buffer;
    f->q.offset = first ? c->q.offset : c->theirs.offset;
    f->q.stride[0] = first ? step : -step;
    f->k = halves_of(f->k);
    f->v = halves_of(f->v);
    f->batch = 2;
    f->heads /= 2;
    f->kv_heads /= 2;
}

static attune_status lend_queries(call *c)
{
    const attune_distributed *d = &c->d->base;
    const uint32_t rank = d->transport.rank;
    attune_message *to = d->messages;
    uint32_t sends = 0, receives = 0;
    for (uint32_t peer = 0; peer < d->transport.size && c->own.rows; peer++)
        if (peer != rank && has_keys(c, peer))
            to[sends++] = lending(peer, c->q.buffer, c->q.offset, query_bytes(c, &c->own));
    for (uint32_t peer = 0; peer < d->transport.size && has_keys(c, rank); peer++) {
        const share theirs = share_of(c->d, peer);
        if (peer != rank && theirs.rows)
            to[sends + receives++] = lending(peer, NULL, 0, query_bytes(c, &theirs));
    }
    ATTUNE__TRY(attune__distributed_lend(&c->base, to, sends, receives));
    c->in_place = receives == 1 && are_batches(c, &to[sends]);
    if (c->in_place) {
        c->theirs = to[sends];
        return ATTUNE_OK;
    }
    if (has_keys(c, rank))
        ATTUNE__TRY(gather_queries(c, to + sends, receives));
    return attune__distributed_finish(&c->base);
}

static attune_status lend_results(call *c)
{
    const attune_distributed *d = &c->d->base;
    const uint32_t rank = d->transport.rank, size = d->transport.size;
    const place from = own_results(c);
    /* Of splits what all ranks have alike, since the rest of a workspace is a device's own. */
    const uint64_t bytes =
        d->splits ? attune__split_size(&d->shape, d->splits, (uint32_t)attune_dtype_size(attune__shape_real(&d->shape)))
                  : result_bytes(c->d);
    /* Others may still look at the queries that this rank lent. */
    attune_message *to = d->messages + 2 * (size_t)size;
    uint32_t sends = 0, receives = 0;
    for (uint32_t peer = 0; peer < size && has_keys(c, rank); peer++)
        if (peer != rank && share_of(c->d, peer).rows)
            to[sends++] = lending(peer, from.buffer, from.offset, bytes);
    for (uint32_t peer = 0; peer < size && c->own.rows; peer++)
        if (peer != rank && has_keys(c, peer))
            to[sends + receives++] = lending(peer, NULL, 0, bytes);
    c->borrowed = to + sends;
    return attune__distributed_lend(&c->base, to, sends, receives);
}

/* ----------------------------------------------------------------------------------------------------------- checks */

/* A tensor of this rank's queries; `adjacent`: without gaps. */
static attune_status check_rows(const call *c, const char *name, attune_dtype dtype, uint32_t columns, bool output,
                                attune_tensor *t)
{
    const attune_distributed *d = &c->d->base;
    const bool by_head = c->d->split == ATTUNE_QUERIES_BY_HEAD;
    const attune__tensor_rule rule = {name, d->device, dtype, columns ? 4 : 3, output, columns != 0};
    const int64_t size[4] = {by_head ? d->shape.batch : c->own.count, by_head ? c->own.count : d->shape.heads,
                             c->d->q_len, columns};
    ATTUNE__TRY(attune__tensor_check(t, &rule));
    int64_t step = 1;
    for (uint32_t i = rule.rank; i-- > 0; step *= size[i]) {
        ATTUNE__TRY(attune__check_size(name, t, i, "this rank's", size[i]));
        if (!output && size[i] > 1 && t->stride[i] != step)
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s.stride[%u] is %lld, expected %lld: it is sent as it lies",
                                name, i, (long long)t->stride[i], (long long)step);
    }
    return ATTUNE_OK;
}

static attune_status check(call *c)
{
    attune_distributed *d = c->base.d;
    const attune__shape *s = &d->shape;
    const attune_forward_args *a = &c->args;
    const int64_t keys = keys_of(c->d, d->transport.rank, c->kv_len);
    ATTUNE__TRY(attune__distributed_check_args(a, "mask (a score of -inf forbids a pair)"));
    if (c->kv_len < 1 || c->kv_len > s->kv_len)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "kv_len is %lld, expected 1 to problem.kv_len, %lld",
                            (long long)c->kv_len, (long long)s->kv_len);
    ATTUNE__TRY(attune__distributed_check_workspace(&c->base));
    if (keys && (a->k.rank != 4 || a->k.size[2] != keys))
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "k has %lld keys, but of %lld keys rank %u of %u has %lld, in chunks of %lld",
                            a->k.rank == 4 ? (long long)a->k.size[2] : 0, (long long)c->kv_len, d->transport.rank,
                            d->transport.size, (long long)keys, (long long)c->d->chunk);
    c->q = a->q;
    c->o = a->o;
    c->lse = a->lse;
    if (c->own.count) {
        ATTUNE__TRY(check_rows(c, "q", s->q_dtype, s->head_dim, false, &c->q));
        ATTUNE__TRY(check_rows(c, "o", s->o_dtype, s->head_dim_v, true, &c->o));
        if (c->lse.buffer)
            ATTUNE__TRY(check_rows(c, "lse", attune__shape_real(s), 0, true, &c->lse));
    }
    /* The symbols of the score expression are bound to these. */
    d->kv_len = c->kv_len;
    d->parts[ATTUNE__OWN].keys = keys;
    return ATTUNE_OK;
}

/* ---------------------------------------------------------------------------------------------------------- compute */

/* attune__merge_part_fn of one tensor */
static attune__merge_part copied(const void *user, uint32_t index)
{
    (void)index;
    return (attune__merge_part){.o = *(const attune_tensor *)user};
}

/* Into q of all queries. */
static attune_status copy_own(call *c)
{
    if (!c->own.count)
        return ATTUNE_OK;
    const attune_tensor to = part_of(c, &c->own, whole_q(c));
    return attune__distributed_merge(&c->base, &to, NULL, 1, copied, &c->q);
}

static attune_status compute(call *c)
{
    const attune_distributed *d = &c->d->base;
    attune__forward_call resolved;
    attune_forward_args a = c->args;
    attune__distributed_symbols found;
    double seconds = 0;
    attune__distributed_find_symbols(&c->base, ATTUNE__OWN, &found);
    a.captures = found.captures;
    a.capture_count = found.capture_count;
    a.parameters = found.parameters;
    a.parameter_count = found.parameter_count;
    a.workspace_offset += d->plan_at;
    if (d->transport.size > 1) {
        const place at = d->splits ? (place){c->d->lent, 0} : own_results(c);
        a.q = whole_q(c);
        a.o = whole(c, at.buffer, at.offset, d->shape.o_dtype, d->shape.head_dim_v);
        a.lse = whole_lse(c, at);
    }
    if (d->splits) {
        a.workspace = c->d->lent;
        a.workspace_offset = splits_at(c->d);
    }
    ATTUNE__TRY(attune__forward_resolve_at(d->plan, &a, NULL, &resolved));
    if (d->transport.size > 1) {
        resolved.call.o = whole_o(c, own_results(c));
        resolved.call.part = true;
        resolved.call.splits = d->splits;
    }
    if (c->in_place)
        take_batches(c, &resolved.call);
    /* Rank 0 always has keys. */
    if (d->transport.rank)
        resolved.call.sinks.buffer = NULL;
    resolved.call.seconds = a.seconds ? &seconds : NULL;
    /* A merge follows. */
    uint64_t *value = d->splits && c->own.count ? NULL : &c->base.value;
    ATTUNE__TRY(attune__plan_forward(d->plan, c->base.queue, &resolved.call, value));
    c->seconds += seconds;
    return c->in_place ? attune__distributed_finish(&c->base) : ATTUNE_OK;
}

/* attune__merge_part_fn: ranks with keys are the first, because keys are dealt in their order. */
static attune__merge_part result_at(const void *user, uint32_t rank)
{
    const call *c = user;
    const bool mine = rank == c->d->base.transport.rank;
    if (!mine && !c->d->lent)
        return (attune__merge_part){.o = returned(c, rank, false), .lse = returned(c, rank, true)};
    const place at = mine ? own_results(c) : borrowed_from(c, rank);
    return (attune__merge_part){.o = part_of(c, &c->own, whole_o(c, at)), .lse = part_of(c, &c->own, whole_lse(c, at))};
}

/* Splits of all ranks, as they are. */
static attune_status merge_splits(call *c, uint32_t parts)
{
    const attune_distributed *d = &c->d->base;
    const bool heads = c->d->split == ATTUNE_QUERIES_BY_HEAD;
    attune__copy from[ATTUNE__MERGE_PARTS];
    double seconds = 0;
    for (uint32_t r = 0; r < parts; r++) {
        const place at = r == d->transport.rank ? own_results(c) : borrowed_from(c, r);
        from[r] = (attune__copy){.buffer = at.buffer, .offset = at.offset};
    }
    const attune__merge_splits step = {.parts = from,
                                       .part_count = parts,
                                       .split = d->splits,
                                       .o = c->o,
                                       .lse = c->lse,
                                       .batch = d->shape.batch,
                                       .heads = d->shape.heads,
                                       .first_batch = heads ? 0 : c->own.first,
                                       .first_head = heads ? c->own.first : 0,
                                       .scale = d->shape.scale,
                                       .has_score = d->plan->score != NULL,
                                       .seconds = c->base.seconds ? &seconds : NULL};
    ATTUNE__TRY(d->device->backend->merge_splits(d->merger, c->base.queue, &step, &c->base.value));
    c->seconds += seconds;
    return ATTUNE_OK;
}

static attune_status merge_results(call *c)
{
    uint32_t parts = 0;
    while (parts < c->d->base.transport.size && has_keys(c, parts))
        parts++;
    if (c->own.count && c->d->base.splits)
        return merge_splits(c, parts);
    return c->own.count ? attune__distributed_merge(&c->base, &c->o, &c->lse, parts, result_at, c) : ATTUNE_OK;
}

static attune_status send_queries(call *c)
{
    ATTUNE__TRY(exchange_queries(c));
    if (has_keys(c, c->d->base.transport.rank))
        ATTUNE__TRY(copy_own(c));
    return attune__distributed_finish(&c->base);
}

/* The results of all ranks, merged where their queries are. */
static attune_status join_results(call *c)
{
    if (c->d->lent) {
        ATTUNE__TRY(lend_results(c));
        ATTUNE__TRY(merge_results(c));
        return attune__distributed_finish(&c->base);
    }
    ATTUNE__TRY(exchange_results(c));
    ATTUNE__TRY(attune__distributed_finish(&c->base));
    return merge_results(c);
}

static attune_status run(call *c)
{
    const attune_distributed *d = &c->d->base;
    const bool several = d->transport.size > 1;
    ATTUNE__TRY(check(c));
    if (several)
        ATTUNE__TRY(c->d->lent ? lend_queries(c) : send_queries(c));
    if (has_keys(c, d->transport.rank))
        ATTUNE__TRY(compute(c));
    if (several)
        ATTUNE__TRY(join_results(c));
    if (c->args.seconds)
        *c->args.seconds = c->seconds;
    return ATTUNE_OK;
}

attune_status attune_distributed_decode(attune_decode *decode, attune_queue *queue, const attune_forward_args *args,
                                        int64_t kv_len, attune_completion *completion)
{
    ATTUNE__TRY(attune__check_not_null(decode, "decode"));
    ATTUNE__TRY(attune__distributed_usable(&decode->base));
    call c = {.base = {.d = &decode->base, .queue = queue}, .d = decode, .kv_len = kv_len};
    attune_status status = attune__distributed_begin(&c.base, ATTUNE_FORWARD);
    if (status == ATTUNE_OK)
        status = attune__desc_read(&c.args, sizeof c.args, args, sizeof c.args, "args");
    if (status == ATTUNE_OK) {
        c.own = share_of(decode, decode->base.transport.rank);
        ATTUNE__DISTRIBUTED_ARGUMENTS(&c);
        status = run(&c);
    }
    return attune__distributed_end(&c.base, status, completion);
}
