/* SPDX-License-Identifier: MIT */
/* Prepares a rank's calls: its masks, plan, messages and workspace; and compares with the other ranks. */
#include "distributed/ranks.h"

#include <float.h>
#include <string.h>

#include "plan/plan.h"

/* ------------------------------------------------------------------------------------------------------------ masks */

static const attune__run_view no_runs;

/* The positions of two lists of runs, in ascending order. */
static attune_status list_positions(const attune_allocator *allocator, attune__run_view a, attune__run_view b,
                                    int32_t **positions)
{
    int32_t *at = attune__alloc_raw(allocator, (size_t)(attune__runs_length(a) + attune__runs_length(b)), sizeof *at);
    if (!at)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    *positions = at;
    for (size_t i = 0, j = 0; i < a.count || j < b.count;) {
        const bool of_a = j == b.count || (i < a.count && a.items[i].start < b.items[j].start);
        const attune_run *run = of_a ? &a.items[i++] : &b.items[j++];
        for (int64_t k = 0; k < run->count; k++)
            *at++ = (int32_t)(run->start + k);
    }
    return ATTUNE_OK;
}

/* How many positions of runs are below one: the index of a position that they have. */
static int64_t count_below(attune__run_view runs, int64_t position)
{
    int64_t below = 0;
    for (size_t i = 0; i < runs.count && runs.items[i].start < position; i++) {
        const int64_t count = position - runs.items[i].start;
        below += count < runs.items[i].count ? count : runs.items[i].count;
    }
    return below;
}

static attune_status upload_positions(attune_device *device, const attune__positions *positions, attune_buffer **buffer)
{
    const uint64_t bytes = (uint64_t)positions->count * sizeof *positions->at;
    ATTUNE__TRY(attune_buffer_create(device, bytes, buffer));
    return attune_buffer_write(*buffer, 0, positions->at, bytes);
}

/* The mask of this rank's rows and of the keys of a part. */
static attune_status make_part(attune_distributed *d, const attune_mask *mask, const attune__positions *rows,
                               const attune__run_view *runs, int which)
{
    const attune_allocator *allocator = &d->device->host.allocator;
    attune__distributed_part *part = &d->parts[which];
    const bool both = which == ATTUNE__OTHERS && d->own_copy_count;
    int32_t *at = NULL;
    ATTUNE__TRY(list_positions(allocator, both ? runs[ATTUNE__OWN] : no_runs, runs[which], &at));
    const attune__positions positions = {at, part->keys};
    attune_status status = attune__mask_gather(mask, rows, &positions, &part->mask);
    if (status == ATTUNE_OK)
        status = upload_positions(d->device, &positions, &part->positions);
    attune__free(allocator, at);
    return status;
}

/* Lets kernels compare with the ends of rows' intervals where each row of all parts has one, backward also each key:
 * one kernel computes all parts, so that they have one expression. Without partial blocks it is not evaluated. */
static attune_status use_spans(attune_distributed *d)
{
    const bool backward = d->shape.direction == ATTUNE_BACKWARD;
    attune__spans spans[ATTUNE__DISTRIBUTED_PARTS] = {{{NULL}, {NULL}}};
    attune_status status = ATTUNE_OK;
    bool found = false;
    for (int i = 0; i < ATTUNE__DISTRIBUTED_PARTS; i++)
        found = found || (d->parts[i].mask && attune__mask_has_partial(d->parts[i].mask));
    for (int i = 0; i < ATTUNE__DISTRIBUTED_PARTS && found && status == ATTUNE_OK; i++)
        if (d->parts[i].mask) {
            status = attune__mask_find_spans(d->parts[i].mask, &spans[i]);
            found = backward ? spans[i].key[0] != NULL : spans[i].row[0] != NULL;
        }
    for (int i = 0; i < ATTUNE__DISTRIBUTED_PARTS; i++)
        if (d->parts[i].mask) {
            if (found && status == ATTUNE_OK)
                status = attune__mask_use_spans(d->parts[i].mask, &spans[i], backward);
            attune__spans_free(d->parts[i].mask, &spans[i]);
        }
    return status;
}

/* A launch, as the bytes that the device's memory moves meanwhile: 3 us of 3.35 TB/s. */
#define LAUNCH_COST 1e7

/* Whether one launch over all keys, which waits for those of others, is to be expected to take less time: as bytes of
 * the device's memory, what arrives and the copies beside what a second launch reads again and the merge needs. */
static bool is_one_launch_less(const attune_distributed *d, int64_t own, size_t copies)
{
    const attune__shape *s = &d->shape;
    const bool backward = s->direction == ATTUNE_BACKWARD;
    const double real = (double)attune_dtype_size(attune__shape_real(s)), columns = s->head_dim + s->head_dim_v,
                 key = (double)(s->kv_batch * s->kv_heads) * (double)attune_dtype_size(s->k_dtype) * columns,
                 received = (double)d->parts[ATTUNE__OTHERS].keys * key;
    const double one = received * d->transport.byte_cost + 2 * (double)own * key + 2 * (double)copies * LAUNCH_COST;
    /* Forwards two results are written and read. Backwards d_q of one launch more is set to 0, added to, written and
     * read, and o and d_o are read for delta and with q. */
    const double merged = backward ? 6 * s->head_dim * real : 4 * (s->head_dim_v + 1) * real,
                 again = (backward ? columns + 2 * s->head_dim_v : s->head_dim) * (double)attune_dtype_size(s->q_dtype);
    return one < (double)(s->batch * s->heads * d->rows) * (merged + again) + 2 * LAUNCH_COST;
}

/* Where the own keys lie among all keys of this rank, if one launch is to compute both parts. */
static attune_status choose_launches(attune_distributed *d, const attune__run_view *runs, attune_overlap overlap)
{
    const attune__run_view own = runs[ATTUNE__OWN], others = runs[ATTUNE__OTHERS];
    size_t count = 0;
    if (overlap == ATTUNE_OVERLAP_ON || (overlap == ATTUNE_OVERLAP_AUTO && d->transport.byte_cost == 0) || !own.count ||
        !others.count)
        return ATTUNE_OK;
    d->own_copies = attune__alloc(&d->device->host.allocator, own.count, sizeof *d->own_copies);
    if (!d->own_copies)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    int64_t start = 0;
    for (size_t i = 0; i < own.count; i++) {
        const int64_t at = start + count_below(others, own.items[i].start);
        attune__own_copy *last = count ? &d->own_copies[count - 1] : NULL;
        if (last && last->at + last->count == at)
            last->count += own.items[i].count;
        else
            d->own_copies[count++] = (attune__own_copy){start, own.items[i].count, at};
        start += own.items[i].count;
    }
    if (overlap == ATTUNE_OVERLAP_AUTO && !is_one_launch_less(d, start, count))
        return ATTUNE_OK;
    d->own_copy_count = count;
    d->parts[ATTUNE__OTHERS].keys += start;
    d->parts[ATTUNE__OWN].keys = 0;
    return ATTUNE_OK;
}

static attune_status make_masks(attune_distributed *d, const attune_partition *p, const attune_mask *mask,
                                attune_overlap overlap)
{
    const uint32_t r = d->transport.rank;
    const attune__run_view runs[ATTUNE__DISTRIBUTED_PARTS] = {attune__runs_of(&p->keys, r),
                                                              attune__runs_of(&p->needs, r)};
    const attune_allocator *allocator = &d->device->host.allocator;
    attune__distributed_part *own = &d->parts[ATTUNE__OWN];
    int32_t *at = NULL;
    if (!d->rows)
        return ATTUNE_OK;
    for (int i = 0; i < ATTUNE__DISTRIBUTED_PARTS; i++)
        d->parts[i].keys = attune__runs_length(runs[i]);
    attune_status status = choose_launches(d, runs, overlap);
    if (status != ATTUNE_OK)
        return status;
    if (d->rows == d->q_len && own->keys == d->kv_len) {
        status = attune__mask_slice(mask, &(attune_mask_range){.struct_size = sizeof(attune_mask_range)}, &own->mask);
    } else {
        status = list_positions(allocator, attune__runs_of(&p->rows, r), no_runs, &at);
        const attune__positions rows = {at, d->rows};
        if (status == ATTUNE_OK)
            status = upload_positions(d->device, &rows, &d->positions);
        for (int i = 0; status == ATTUNE_OK && i < ATTUNE__DISTRIBUTED_PARTS; i++)
            if (d->parts[i].keys)
                status = make_part(d, mask, &rows, runs, i);
        if (status == ATTUNE_OK)
            status = use_spans(d);
    }
    for (int i = 0; status == ATTUNE_OK && i < ATTUNE__DISTRIBUTED_PARTS; i++)
        if (d->parts[i].mask)
            status = attune_mask_upload(d->parts[i].mask, d->device);
    attune__free(allocator, at);
    return status;
}

/* ------------------------------------------------------------------------------------------------------------- plan */

attune_status attune__distributed_score(const attune_distributed *d, const attune_expr *score, attune_expr **made)
{
    attune_expr *dense;
    if (!score || !d->positions) {
        *made = attune__expr_retain(score);
        return ATTUNE_OK;
    }
    ATTUNE__TRY(attune__expr_dense(&score->allocator, score, &dense));
    const attune_status status = attune__expr_gather(&score->allocator, dense, made);
    attune__expr_release(dense);
    return status;
}

/* The same bits in every run, unless the engine wants others. */
static attune_status ordered_options(const attune_kernel_options *given, attune_kernel_options *options)
{
    *options = (attune_kernel_options){.struct_size = sizeof *options};
    if (given)
        ATTUNE__TRY(attune__desc_read(options, sizeof *options, given, sizeof *options, "desc.options"));
    if (!options->any.deterministic && !options->bwd.deterministic)
        options->bwd.deterministic = ATTUNE_ON;
    return ATTUNE_OK;
}

static attune_status make_plan(attune_distributed *d, const attune_problem *problem, const attune_kernel_options *given)
{
    const attune__distributed_part *own = &d->parts[ATTUNE__OWN], *others = &d->parts[ATTUNE__OTHERS];
    attune_problem p = *problem;
    attune_kernel_options options;
    attune_expr *score;
    if (!d->rows)
        return ATTUNE_OK;
    ATTUNE__TRY(ordered_options(given, &options));
    p.q_len = d->rows;
    p.kv_len = own->keys > others->keys ? own->keys : others->keys;
    p.lse = p.lse || attune__distributed_split(d);
    ATTUNE__TRY(attune_problem_set_mask(&p, own->mask ? own->mask : others->mask));
    ATTUNE__TRY(attune__distributed_score(d, problem->score, &score));
    p.score = score;
    const attune_status status = attune__plan_create(d->device, &p, &options, attune__distributed_partial(d), &d->plan);
    attune__expr_release(score);
    return status;
}

/* ------------------------------------------------------------------------------------------------------------ heads */

/* Of a rank that agrees to any number of first heads. */
#define ANY_HEADS INT64_MAX

/* Whether the calls of a part can be of some heads: nothing in them depends on which they are. */
static bool has_equal_heads(const attune_distributed *d)
{
    const uint16_t heads = 1u << ATTUNE__VAR_H | 1u << ATTUNE__VAR_H_KV;
    bool equal = !d->plan->score || !(d->plan->score->uses & heads);
    for (int i = 0; i < ATTUNE__DISTRIBUTED_PARTS; i++) {
        const attune_mask *mask = d->parts[i].mask;
        equal = equal && (!mask || (mask->stored_heads == 1 && !(mask->uses & heads)));
    }
    return equal;
}

/* How many KV heads this rank would compute while the others arrive: a quarter; 0 = none. Few leave little to wait for,
 * but a launch's last tiles leave the device idle. */
static int64_t choose_first_heads(const attune_distributed *d, attune_overlap overlap)
{
    const attune__shape *s = &d->shape;
    if (overlap != ATTUNE_OVERLAP_HEADS || s->direction != ATTUNE_FORWARD || d->token_major || s->kv_heads < 2 ||
        s->sinks || d->transport.size < 2 || !d->device->backend->fewer_heads)
        return 0;
    if (!d->own_copy_count)
        return ANY_HEADS;
    const int64_t first = s->kv_heads / 4 ? s->kv_heads / 4 : 1;
    return has_equal_heads(d) ? first : 0;
}

/* Whether this rank would read the keys of others in place: it computes all keys in one launch, or has no choice. */
static bool may_read(const attune_distributed *d, attune_overlap overlap)
{
    const bool one_launch = d->own_copy_count || !d->parts[ATTUNE__OWN].keys || !d->parts[ATTUNE__OTHERS].keys;
    return d->transport.lend && d->transport.size > 1 &&
           (overlap == ATTUNE_OVERLAP_READ || (overlap == ATTUNE_OVERLAP_AUTO && one_launch));
}

/* --------------------------------------------------------------------------------------------------------- messages */

/* The first of a run of others among the keys of their part. */
static int64_t received_at(const attune_distributed *d, attune__run_view own, attune__run_view needs, int64_t position)
{
    return count_below(needs, position) + (d->own_copy_count ? count_below(own, position) : 0);
}

static attune_status make_transfers(attune_distributed *d, const attune_partition *p)
{
    const attune_allocator *allocator = &d->device->host.allocator;
    const uint32_t r = d->transport.rank;
    const attune__run_view own = attune__runs_of(&p->keys, r), needs = attune__runs_of(&p->needs, r);
    for (size_t i = 0; i < p->needs.count; i++)
        d->send_count += p->needs.items[i].rank == r;
    d->receive_count = needs.count;
    d->sends = attune__alloc(allocator, d->send_count, sizeof *d->sends);
    d->receives = attune__alloc(allocator, d->receive_count, sizeof *d->receives);
    size_t planes = (size_t)attune__transfer_planes(d), messages = d->send_count + d->receive_count;
    if (messages > UINT32_MAX / 2 / planes)
        return attune__fail(ATTUNE_UNSUPPORTED, "rank %u has %zu runs to exchange in %zu planes: use larger chunks", r,
                            messages, planes);
    if (!d->sends || !d->receives)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    attune__transfer *send = d->sends, *receive = d->receives;
    for (uint32_t peer = 0; peer < p->ranks; peer++) {
        const attune__run_view theirs = attune__runs_of(&p->needs, peer);
        for (size_t i = 0; i < theirs.count; i++)
            if (theirs.items[i].rank == r)
                *send++ = (attune__transfer){peer, count_below(own, theirs.items[i].start), theirs.items[i].count};
        for (size_t i = 0; i < needs.count; i++)
            if (needs.items[i].rank == peer)
                *receive++ =
                    (attune__transfer){peer, received_at(d, own, needs, needs.items[i].start), needs.items[i].count};
    }
    return ATTUNE_OK;
}

attune_status attune__distributed_make_messages(attune_distributed *d, size_t count, uint64_t bytes)
{
    const attune_allocator *allocator = &d->device->host.allocator;
    d->messages = attune__alloc(allocator, count, sizeof *d->messages);
    if (!d->messages)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    if (!d->transport.host_memory || !d->device->backend->copy || d->transport.size == 1)
        return ATTUNE_OK;
    d->copies = attune__alloc(allocator, count, sizeof *d->copies);
    d->staging = attune__alloc_raw(allocator, bytes, 1);
    return d->copies && d->staging ? ATTUNE_OK : ATTUNE_OUT_OF_HOST_MEMORY;
}

/* The bytes of the exchange that has most: of keys, of their gradients and slices, or of the sums of slices. */
static uint64_t exchanged_bytes(const attune_distributed *d)
{
    const attune__shape *s = &d->shape;
    const uint64_t planes = (uint64_t)(s->kv_batch * s->kv_heads), real = attune_dtype_size(attune__shape_real(s));
    uint64_t keys = 0, slices = 0;
    for (size_t i = 0; i < d->send_count; i++)
        keys += planes * (uint64_t)d->sends[i].count;
    for (size_t i = 0; i < d->receive_count; i++)
        keys += planes * (uint64_t)d->receives[i].count;
    for (int i = 0; i < ATTUNE__REDUCTIONS; i++) {
        const attune__reduction *r = &d->reductions[i];
        const uint32_t rank = d->transport.rank, size = d->transport.size;
        const int64_t mine = attune__reduction_slice(d, r, rank + 1) - attune__reduction_slice(d, r, rank);
        slices += (uint64_t)(r->lines + mine * (int64_t)size) * ATTUNE__REDUCTION_LINE * attune_dtype_size(r->dtype);
    }
    const uint64_t forward =
        s->head_dim * attune_dtype_size(s->k_dtype) + s->head_dim_v * attune_dtype_size(s->v_dtype);
    const uint64_t backward = keys * (s->head_dim + s->head_dim_v) * real + slices;
    return s->direction == ATTUNE_FORWARD || backward < keys * forward ? keys * forward : backward;
}

static attune_status make_messages(attune_distributed *d)
{
    /* Messages of k and of v; and slices of both reductions to and from each rank. */
    const size_t count = (d->send_count + d->receive_count) * (size_t)attune__transfer_planes(d) * 2 +
                         (size_t)d->transport.size * ATTUNE__REDUCTIONS * 2;
    return attune__distributed_make_messages(d, count, exchanged_bytes(d));
}

static void lay_out_gradients(attune_distributed *d)
{
    const attune__shape *s = &d->shape;
    const uint64_t planes = (uint64_t)(s->kv_batch * s->kv_heads), real = attune_dtype_size(attune__shape_real(s));
    for (int i = 0; i < ATTUNE__KEY_GRADIENTS; i++) {
        attune__key_gradients *g = &d->gradients[i];
        g->k_at = attune__distributed_reserve(d, planes * (uint64_t)g->keys * s->head_dim * real);
        g->v_at = attune__distributed_reserve(d, planes * (uint64_t)g->keys * s->head_dim_v * real);
    }
    for (int i = 0; i < ATTUNE__REDUCTIONS; i++) {
        attune__reduction *r = &d->reductions[i];
        const uint64_t line = ATTUNE__REDUCTION_LINE * attune_dtype_size(r->dtype);
        const uint32_t rank = d->transport.rank, size = d->transport.size;
        const int64_t mine = attune__reduction_slice(d, r, rank + 1) - attune__reduction_slice(d, r, rank);
        r->at = attune__distributed_reserve(d, (uint64_t)r->lines * line);
        r->slices_at = attune__distributed_reserve(d, (uint64_t)mine * size * line);
    }
}

/* The workspace of the merge that needs most. */
static uint64_t merge_size(const attune_distributed *d)
{
    const attune__shape *s = &d->shape;
    const attune_dtype real = attune__shape_real(s);
    uint64_t most = ATTUNE__MERGE_WORKSPACE;
    for (size_t i = 0; i < d->sum_count; i++) {
        const uint64_t rows = (uint64_t)(s->kv_batch * s->kv_heads * d->sums[i].count);
        const uint64_t columns = s->head_dim > s->head_dim_v ? s->head_dim : s->head_dim_v;
        const uint64_t size = attune__merge_workspace(real, rows, columns, (uint32_t)d->sums[i].contributions);
        most = size > most ? size : most;
    }
    for (int i = 0; i < ATTUNE__REDUCTIONS; i++) {
        const uint64_t size =
            attune__merge_workspace(real, (uint64_t)d->reductions[i].lines, ATTUNE__REDUCTION_LINE, d->transport.size);
        most = d->reductions[i].lines && size > most ? size : most;
    }
    return most;
}

static void lay_out(attune_distributed *d)
{
    const attune__shape *s = &d->shape;
    const bool backward = s->direction == ATTUNE_BACKWARD;
    const uint64_t keys = (uint64_t)(s->kv_batch * s->kv_heads * d->parts[ATTUNE__OTHERS].keys);
    const uint64_t rows = (uint64_t)(s->batch * s->heads * d->rows);
    const uint64_t real = attune_dtype_size(attune__shape_real(s));
    d->k_at = attune__distributed_reserve(d, keys * s->head_dim * attune_dtype_size(s->k_dtype));
    d->v_at = attune__distributed_reserve(d, keys * s->head_dim_v * attune_dtype_size(s->v_dtype));
    if (attune__distributed_partial(d)) {
        d->lse_at = attune__round_up64(rows * (backward ? s->head_dim : s->head_dim_v) * real, 256);
        d->part_size = d->lse_at + (backward ? 0 : attune__round_up64(rows * real, 256));
        d->part_at = attune__distributed_reserve(d, attune__distributed_part_count(d) * d->part_size);
    }
    if (backward)
        lay_out_gradients(d);
    if (d->merger)
        d->merge_at = attune__distributed_reserve(d, merge_size(d));
    d->plan_at = attune__distributed_reserve(d, attune_plan_workspace_size(d->plan));
}

/* -------------------------------------------------------------------------------------------------------- agreement */

/* Gathered from every rank: all must agree. */
typedef struct agreement {
    uint64_t hash[2];
    uint64_t status; /* attune_status of the preparation */
    int64_t first_heads;
    uint32_t reads, splits;
} agreement;

void attune__distributed_hash(const attune_distributed *d, const attune_expr *score, attune__hash *hash)
{
    const attune__shape *s = &d->shape;
    uint64_t scale;
    memcpy(&scale, &s->scale, sizeof scale);
    const uint64_t words[] = {attune_version(),
                              (uint64_t)s->batch,
                              (uint64_t)s->kv_batch,
                              (uint64_t)s->heads,
                              (uint64_t)s->kv_heads,
                              s->head_dim,
                              s->head_dim_v,
                              (uint64_t)s->q_dtype,
                              (uint64_t)s->k_dtype,
                              (uint64_t)s->v_dtype,
                              (uint64_t)s->o_dtype,
                              d->token_major,
                              s->sinks,
                              (uint64_t)s->direction,
                              s->capture_gradient_elements,
                              scale,
                              score ? score->hash.lane[0] : 0,
                              score ? score->hash.lane[1] : 0};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        attune__hash_add(hash, words[i]);
}

attune_status attune__distributed_begin_create(const attune_transport *t, const attune_device *device,
                                               const void *object, const char *name)
{
    const attune_allocator *allocator = device ? &device->host.allocator : &attune__default_allocator;
    attune_status status = attune__check_not_null(object, name);
    if (status == ATTUNE_OK)
        status = attune__check_not_null(device, "device");
    if (status == ATTUNE_OK)
        return ATTUNE_OK;
    const agreement mine = {.status = (uint64_t)status};
    agreement *all = attune__alloc(allocator, t->size, sizeof *all);
    if (!all || t->gather(t->user, &mine, all, sizeof mine) != ATTUNE_OK)
        t->abort(t->user);
    attune__free(allocator, all);
    return status;
}

attune_status attune__distributed_agree(attune_distributed *d, attune__hash hash, attune_status status)
{
    const attune_transport *t = &d->transport;
    const attune_allocator *allocator = &d->device->host.allocator;
    agreement *all = attune__alloc(allocator, t->size, sizeof *all);
    const agreement mine = {{hash.lane[0], hash.lane[1]}, (uint64_t)status, d->first_heads, d->reads, d->splits};
    if (!all) {
        t->abort(t->user);
        return ATTUNE_OUT_OF_HOST_MEMORY;
    }
    const uint64_t failures = attune__failures();
    const attune_status gathered = t->gather(t->user, &mine, all, sizeof mine);
    if (status == ATTUNE_OK && gathered != ATTUNE_OK)
        status = attune__distributed_callback_failed(t, "gather", gathered, failures);
    if (gathered != ATTUNE_OK)
        t->abort(t->user);
    for (uint32_t r = 0; status == ATTUNE_OK && r < t->size; r++)
        if (all[r].status != ATTUNE_OK)
            status = attune__fail((attune_status)all[r].status, "rank %u failed with %s: see its message", r,
                                  attune_status_string((attune_status)all[r].status));
    for (uint32_t r = 0; status == ATTUNE_OK && r < t->size; r++)
        if (all[r].hash[0] != all[0].hash[0] || all[r].hash[1] != all[0].hash[1])
            status = attune__fail(ATTUNE_INVALID_ARGUMENT,
                                  "rank %u has another partition or problem than rank 0 (hash %016llx, not %016llx): "
                                  "make both of the same mask, descriptions and version of attune",
                                  r, (unsigned long long)all[r].hash[0], (unsigned long long)all[0].hash[0]);
    for (uint32_t r = 0; status == ATTUNE_OK && r < t->size; r++) {
        d->first_heads = all[r].first_heads < d->first_heads ? all[r].first_heads : d->first_heads;
        d->reads = d->reads && all[r].reads;
        d->splits = d->splits == all[r].splits ? d->splits : 0;
    }
    if (d->first_heads == ANY_HEADS)
        d->first_heads = 0;
    attune__free(allocator, all);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- checks */

attune_status attune__distributed_transport(const attune_transport *given, attune_transport *t)
{
    ATTUNE__TRY(attune__desc_read(t, sizeof *t, given, sizeof *t, "desc.transport"));
    if (!t->size || t->size > ATTUNE_MAX_RANKS || t->rank >= t->size)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "desc.transport is of rank %u of %u, expected a rank below a size of 1 to %d", t->rank,
                            t->size, ATTUNE_MAX_RANKS);
    if (!t->gather || !t->exchange || !t->abort)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.transport->%s is NULL",
                            !t->gather     ? "gather"
                            : !t->exchange ? "exchange"
                                           : "abort");
    return ATTUNE_OK;
}

attune_status attune__distributed_check_transport(const attune_transport *t)
{
    if (t->lend && (!t->finish || !t->reclaim || t->host_memory))
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "desc.transport->lend is set, %s: devices read each other's memory until finish, and "
                            "reclaim waits for them",
                            t->host_memory ? "and host_memory"
                            : t->finish    ? "but reclaim is NULL"
                                           : "but finish is NULL");
    if (!(t->byte_cost >= 0 && t->byte_cost <= DBL_MAX))
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "desc.transport->byte_cost is %g, expected the cost of a received byte beside one of the "
                            "device's memory, or 0",
                            t->byte_cost);
    return ATTUNE_OK;
}

static attune_status check_length(const char *name, int64_t given, int64_t mask)
{
    if (given && given != mask)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "problem.%s is %lld, expected the mask's, %lld, or 0", name,
                            (long long)given, (long long)mask);
    return ATTUNE_OK;
}

static attune_status check(attune_distributed *d, const attune_distributed_desc *desc, attune_problem *p)
{
    const attune_partition *partition = desc->partition;
    const attune_mask *mask = desc->mask;
    ATTUNE__TRY(attune__check_not_null(partition, "desc.partition"));
    ATTUNE__TRY(attune__check_not_null(mask, "desc.mask"));
    ATTUNE__TRY(attune__check_not_null(desc->problem, "desc.problem"));
    ATTUNE__TRY(attune__desc_read(p, sizeof *p, desc->problem, sizeof *p, "problem"));
    if ((uint32_t)desc->overlap > ATTUNE_OVERLAP_READ)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "desc.overlap is %d, expected ATTUNE_OVERLAP_AUTO, _ON, _OFF, _HEADS or _READ",
                            (int)desc->overlap);
    if (partition->ranks != d->transport.size)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "desc.partition is of %u ranks, desc.transport of %u: make the partition of as many ranks",
                            partition->ranks, d->transport.size);
    if (mask->from_tensor || partition->q_len != mask->q_len || partition->kv_len != mask->kv_len ||
        partition->q_block != mask->q_block || partition->kv_block != mask->kv_block)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "desc.partition is of %lld x %lld in blocks of %u x %u, desc.mask of %lld x %lld in blocks "
                            "of %u x %u: pass the mask that it was made of",
                            (long long)partition->q_len, (long long)partition->kv_len, partition->q_block,
                            partition->kv_block, (long long)mask->q_len, (long long)mask->kv_len, mask->q_block,
                            mask->kv_block);
    ATTUNE__TRY(check_length("q_len", p->q_len, mask->q_len));
    ATTUNE__TRY(check_length("kv_len", p->kv_len, mask->kv_len));
    if (p->segments || p->row_max || p->tokens)
        return attune__fail(ATTUNE_UNSUPPORTED, "problem.%s is set, which several ranks do not have: leave it 0",
                            p->segments  ? "segments"
                            : p->row_max ? "row_max"
                                         : "tokens");
    p->q_len = d->q_len = mask->q_len;
    p->kv_len = d->kv_len = mask->kv_len;
    d->rows = attune__runs_length(attune__runs_of(&partition->rows, d->transport.rank));
    d->own_keys = attune__runs_length(attune__runs_of(&partition->keys, d->transport.rank));
    return attune__shape_from_problem(p, &d->shape);
}

/* Calls are compared with the mask's parameters, which its parts may have no more. */
static attune_status keep_parameters(attune_distributed *d, const attune_mask *mask)
{
    if (!mask->expr)
        return ATTUNE_OK;
    const size_t count = mask->expr->symbol_count;
    d->mask_parameters = attune__alloc(&d->device->host.allocator, count, sizeof *d->mask_parameters);
    if (!d->mask_parameters)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    d->mask_expr = attune__expr_retain(mask->expr);
    for (size_t i = 0; i < count; i++)
        d->mask_parameters[i] = mask->parameters[i];
    return ATTUNE_OK;
}

/* Whether this rank has, or fetches, all keys that its rows compute: those of another mask would be left out. */
static attune_status check_keys(const attune_distributed *d, const attune_partition *p, const attune_mask *mask)
{
    const attune_allocator *allocator = &d->device->host.allocator;
    const uint32_t r = d->transport.rank;
    const attune__run_view lists[] = {attune__runs_of(&p->keys, r), attune__runs_of(&p->needs, r)};
    const int64_t block = mask->kv_block;
    int64_t missing = -1;
    uint64_t *needed = attune__alloc_raw(allocator, attune__needed_words(mask), sizeof *needed);
    if (!needed)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    attune__find_needed(mask, attune__runs_of(&p->rows, r), needed);
    for (size_t l = 0; l < sizeof lists / sizeof *lists; l++)
        for (size_t i = 0; i < lists[l].count; i++) {
            const attune_run *run = &lists[l].items[i];
            for (int64_t c = run->start / block; c * block < run->start + run->count; c++)
                needed[c / 64] &= ~(UINT64_C(1) << c % 64);
        }
    for (int64_t c = 0; c < mask->kv_blocks && missing < 0; c++)
        if (needed[c / 64] >> c % 64 & 1)
            missing = c * block;
    attune__free(allocator, needed);
    if (missing < 0)
        return ATTUNE_OK;
    return attune__fail(ATTUNE_INVALID_ARGUMENT,
                        "desc.mask lets rows of rank %u see keys from %lld on, which desc.partition does not bring "
                        "there: pass the mask that it was made of",
                        r, (long long)missing);
}

static attune_status prepare(attune_distributed *d, const attune_distributed_desc *desc, attune__hash *hash)
{
    uint64_t partition[2];
    attune_problem problem;
    ATTUNE__TRY(attune__distributed_check_transport(&d->transport));
    ATTUNE__TRY(check(d, desc, &problem));
    ATTUNE__TRY(check_keys(d, desc->partition, desc->mask));
    ATTUNE__TRY(keep_parameters(d, desc->mask));
    ATTUNE__TRY(make_masks(d, desc->partition, desc->mask, desc->overlap));
    ATTUNE__TRY(make_plan(d, &problem, desc->options));
    ATTUNE__TRY(make_transfers(d, desc->partition));
    if (d->shape.direction == ATTUNE_BACKWARD && d->transport.size > 1)
        ATTUNE__TRY(attune__distributed_make_sums(d, problem.score));
    d->reads = may_read(d, desc->overlap);
    if (attune__distributed_split(d) || d->own_copy_count || d->zeros || d->reads)
        ATTUNE__TRY(attune__merger_make(d->device, &d->merger));
    ATTUNE__TRY(make_messages(d));
    lay_out(d);
    d->first_heads = choose_first_heads(d, desc->overlap);
    attune_partition_hash(desc->partition, partition);
    attune__hash_add(hash, partition[0]);
    attune__hash_add(hash, partition[1]);
    attune__distributed_hash(d, problem.score, hash);
    return ATTUNE_OK;
}

attune_status attune_distributed_create(attune_device *device, const attune_distributed_desc *desc,
                                        attune_distributed **distributed)
{
    attune_distributed_desc given;
    attune_transport transport;
    if (distributed)
        *distributed = NULL;
    ATTUNE__TRY(attune__desc_read(&given, sizeof given, desc, sizeof given, "desc"));
    ATTUNE__TRY(attune__distributed_transport(given.transport, &transport));
    ATTUNE__TRY(attune__distributed_begin_create(&transport, device, distributed, "distributed"));
    attune_distributed *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made) {
        transport.abort(transport.user);
        return ATTUNE_OUT_OF_HOST_MEMORY;
    }
    made->device = attune__device_retain(device);
    made->transport = transport;
    made->token_major = given.token_major;
    attune__hash hash = attune__hash_begin();
    /* A lost device too is an error of every rank. */
    attune_status status = attune__device_check(device);
    if (status == ATTUNE_OK)
        status = prepare(made, &given, &hash);
    status = attune__distributed_agree(made, hash, status);
    if (status == ATTUNE_OK)
        *distributed = made; /* NOLINT(clang-analyzer-core.NullDereference): NULL was refused */
    else
        attune_distributed_destroy(made);
    return status;
}

void attune_distributed_destroy(attune_distributed *distributed)
{
    if (!distributed)
        return;
    attune_distributed *d = distributed;
    attune_device *device = d->device;
    const attune_allocator allocator = device->host.allocator;
    attune_plan_destroy(d->plan);
    if (d->merger)
        device->backend->merger_destroy(d->merger);
    for (int i = 0; i < ATTUNE__DISTRIBUTED_PARTS; i++) {
        attune_mask_destroy(d->parts[i].mask);
        attune_buffer_destroy(d->parts[i].positions);
    }
    attune_buffer_destroy(d->positions);
    attune__free(&allocator, d->sends);
    attune__free(&allocator, d->receives);
    attune__free(&allocator, d->own_copies);
    attune__free(&allocator, d->messages);
    attune__free(&allocator, d->staging);
    attune__free(&allocator, d->copies);
    attune__expr_release(d->mask_expr);
    attune__free(&allocator, d->mask_parameters);
    attune__expr_release(d->score);
    attune__free(&allocator, d->returns);
    attune__free(&allocator, d->sums);
    attune__free(&allocator, d->contributions);
    attune_buffer_destroy(d->zeros);
    attune__free(&allocator, d);
    attune__device_release(device);
}

uint64_t attune_distributed_workspace_size(const attune_distributed *distributed)
{
    return distributed ? distributed->workspace : 0;
}
