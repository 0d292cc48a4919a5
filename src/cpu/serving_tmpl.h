/* SPDX-License-Identifier: MIT */
/*
 * An item of a call over a cache: the rows of a group of sequences, with the keys of one split or of all. Included by
 * forward_tmpl.h.
 *
 * The keys of a row are summed in splits, which are added in order, whether an item has one or all of them. The rows of
 * each sequence are multiplied on their own, as if it were alone; only tiles of keys that sequences have in common are
 * gathered once. Results therefore depend on neither the batch nor the schedule.
 */

/* The rows of one sequence in an item. */
typedef struct member {
    item it;
    state st; /* the item's, from the member's first row on */
    attune__kv_tile tile;
    bool active; /* it has the tile */
    bool summed; /* st.sum_* have splits */
} member;

typedef struct group_item {
    member members[ATTUNE__CPU_GROUP];
    int64_t count;
    int64_t first, limit; /* keys of its split, or all */
    int64_t part;         /* where its partial result is; -1 = it has all splits */
} group_item;

static state state_from(const state *st, size_t row)
{
    state from = *st;
    from.q += row * st->ldq;
    from.s += row * st->lds;
    from.o += row * st->ldo;
    from.bits += row * st->ldb;
    from.m += row;
    from.l += row;
    from.valid += row;
    from.sum_o += row * st->ldo;
    from.sum_m += row;
    from.sum_l += row;
    from.sum_valid += row;
    return from;
}

/* The rows of a plane and a chunk of a group. */
static void rows_at(const attune__cpu_run *run, const attune__cpu_group *group, int64_t index, const state *st,
                    group_item *g)
{
    const attune__forward *call = run->call;
    const int64_t heads = call->heads / call->kv_heads, step = (int64_t)run->q_step;
    const int64_t head0 = index % run->head_chunks * (int64_t)run->head_step;
    index /= run->head_chunks;
    const int64_t kv_h = index % call->kv_heads, q0 = index / call->kv_heads * step;
    size_t row = 0;
    g->count = group->count;
    for (int64_t i = 0; i < g->count; i++) {
        member *m = &g->members[i];
        item *it = &m->it;
        *it = (item){.b = group->b + i, .kv_h = kv_h, .h0 = kv_h * heads + head0, .q0 = q0};
        it->sequence = attune__cpu_sequence_at(call, it->b);
        it->heads = (size_t)least(heads - head0, (int64_t)run->head_step);
        const int64_t left = it->sequence.q_len - q0;
        it->queries = left > 0 ? (size_t)least(left, step) : 0;
        it->rows = it->heads * it->queries;
        /* Lengths that the schedule was not made for. */
        if (row + it->rows > run->block_m)
            it->rows = it->queries = 0;
        m->st = state_from(st, row);
        m->summed = false;
        row += it->rows;
    }
}

static void group_item_at(const attune__cpu_run *run, int64_t index, const state *st, group_item *g)
{
    const attune__cpu_group *group = attune__cpu_schedule_find(run, &index);
    const int64_t split = index % group->splits;
    g->first = 0;
    g->limit = INT64_MAX;
    g->part = -1;
    if (group->splits > 1) {
        g->first = split * run->split_keys;
        g->limit = g->first + run->split_keys;
        g->part = group->part + index;
    }
    rows_at(run, group, index / group->splits, st, g);
}

/* Adds a split to those before it. */
static void add_split(const attune__cpu_run *run, bool first, REAL *sum_o, REAL *sum_m, REAL *sum_l, REAL *sum_valid,
                      REAL *o, REAL m, REAL l, REAL valid)
{
    const size_t dv = run->program->shape.head_dim_v;
    if (first || *sum_valid == 0) {
        memcpy(sum_o, o, dv * sizeof *o);
        *sum_m = m;
        *sum_l = l;
        *sum_valid = valid;
        return;
    }
    if (valid == 0)
        return;
    const REAL top = m > *sum_m ? m : *sum_m, reference = top == -(REAL)INFINITY ? 0 : top;
    const REAL before = REAL_EXP(*sum_m - reference), factor = REAL_EXP(m - reference);
    run->device->KERNELS.row_scale(sum_o, dv, before);
    for (size_t d = 0; d < dv; d++)
        sum_o[d] += o[d] * factor;
    *sum_l = *sum_l * before + l * factor;
    *sum_m = top;
}

static void end_split(const attune__cpu_run *run, member *m)
{
    const state *st = &m->st;
    for (size_t r = 0; r < m->it.rows; r++) {
        REAL *o = st->o + r * st->ldo;
        add_split(run, !m->summed, st->sum_o + r * st->ldo, st->sum_m + r, st->sum_l + r, st->sum_valid + r, o,
                  st->m[r], st->l[r], st->valid[r]);
        memset(o, 0, st->ldo * sizeof *o);
        st->m[r] = -(REAL)INFINITY;
        st->l[r] = 0;
        st->valid[r] = 0;
    }
    m->summed = true;
}

/* Finds a member's next tile, and ends its split where that is of another. */
static void advance(const attune__cpu_run *run, const group_item *g, member *m)
{
    const int64_t split = m->tile.kv0 / run->split_keys;
    const bool any = m->tile.count > 0;
    m->active = m->it.rows && next_served_tile(run, &m->it, &m->st, g->limit, &m->tile);
    if (m->active && any && m->tile.kv0 / run->split_keys != split)
        end_split(run, m);
}

/* The members from `leader` on that have its tile: the same keys, in the same pages or ones of the same contents. */
static int64_t sharing(const attune__cpu_run *run, const group_item *g, int64_t leader)
{
    const attune__kv_tile *tile = &g->members[leader].tile;
    int64_t shared = INT64_MAX, i = leader + 1;
    for (; i < g->count; i++) {
        const member *m = &g->members[i];
        shared = least(shared, attune__cpu_shared(run->call, m->it.b));
        if (shared < tile->kv0 + (int64_t)tile->count)
            break;
        if (m->active && (m->tile.kv0 != tile->kv0 || m->tile.count != tile->count))
            break;
    }
    return i;
}

/* A tile of keys, with all members that share it. */
static void step(const attune__cpu_run *run, const state *st, group_item *g, int64_t leader, int64_t end)
{
    member *first = &g->members[leader];
    const source k = gather(run, &run->call->k, &first->it, st, &first->tile);
    for (int64_t i = leader; i < end; i++) {
        member *m = &g->members[i];
        if (!m->active)
            continue;
        m->tile.absent = first->tile.absent;
        m->tile.partial |= m->tile.absent;
        scores(run, &m->it, &m->st, &m->tile, k);
        modify(run, &m->it, &m->st, &m->tile);
        softmax(run, &m->it, &m->st, &m->tile);
    }
    const source v = gather(run, &run->call->v, &first->it, st, &first->tile);
    for (int64_t i = leader; i < end; i++) {
        member *m = &g->members[i];
        if (!m->active)
            continue;
        accumulate(run, &m->it, &m->st, &m->tile, v);
        advance(run, g, m);
    }
}

static void compute_group(const attune__cpu_run *run, const state *st, group_item *g)
{
    for (int64_t i = 0; i < g->count; i++) {
        member *m = &g->members[i];
        const int64_t kept = m->it.sequence.kv_first;
        begin_rows(&m->it, &m->st);
        load_q(run, &m->it, &m->st);
        m->tile = (attune__kv_tile){.kv0 = kept > g->first ? kept : g->first};
        advance(run, g, m);
    }
    for (;;) {
        /* The tile that begins first. */
        int64_t leader = -1;
        for (int64_t i = 0; i < g->count; i++)
            if (g->members[i].active && (leader < 0 || g->members[i].tile.kv0 < g->members[leader].tile.kv0))
                leader = i;
        if (leader < 0)
            return;
        step(run, st, g, leader, sharing(run, g, leader));
    }
}

/* A partial result: o of each row, then m, l and valid. */
typedef struct partial {
    REAL *o, *state;
} partial;

static partial part_at(const attune__cpu_run *run, int64_t part)
{
    char *const at = run->parts + (size_t)part * run->part.bytes;
    return (partial){(REAL *)(void *)(at + run->part.o), (REAL *)(void *)(at + run->part.state)};
}

static void store_partial(const attune__cpu_run *run, const group_item *g)
{
    const partial to = part_at(run, g->part);
    const size_t dv = run->program->shape.head_dim_v;
    size_t row = 0;
    for (int64_t i = 0; i < g->count; i++) {
        const member *m = &g->members[i];
        for (size_t r = 0; r < m->it.rows; r++, row++) {
            memcpy(to.o + row * dv, m->st.o + r * m->st.ldo, dv * sizeof *to.o);
            memcpy(to.state + 3 * row, (REAL[]){m->st.m[r], m->st.l[r], m->st.valid[r]}, 3 * sizeof *to.state);
        }
    }
}

static void store_sums(const attune__cpu_run *run, const member *m)
{
    const item *it = &m->it;
    const state *st = &m->st;
    for (size_t r = 0; r < it->rows; r++)
        store(run, it->sequence.batch, row_head(it, r), it->sequence.row0 + row_query(it, r), st->sum_o + r * st->ldo,
              st->sum_m[r], st->sum_l[r], st->sum_valid[r] != 0);
}

void NAME(cpu_serve)(void *user, uint32_t thread)
{
    attune__cpu_run *run = user;
    const state st = state_at(run, thread);
    for (;;) {
        const int64_t index = atomic_fetch_add_explicit(&run->next, 1, memory_order_relaxed);
        if (index >= run->items)
            return;
        group_item g;
        group_item_at(run, index, &st, &g);
        compute_group(run, &st, &g);
        if (g.part >= 0) {
            store_partial(run, &g);
            continue;
        }
        for (int64_t i = 0; i < g.count; i++) {
            end_split(run, &g.members[i]);
            store_sums(run, &g.members[i]);
        }
    }
}

/* The items of groups with splits, once for all splits. */
void NAME(cpu_fold)(void *user, uint32_t thread)
{
    attune__cpu_run *run = user;
    const state st = state_at(run, thread);
    const size_t dv = run->program->shape.head_dim_v;
    const attune__cpu_group *group = run->schedule->group, *end = group + run->schedule->groups;
    int64_t before = 0; /* items of the groups before this one */
    for (;;) {
        int64_t index = atomic_fetch_add_explicit(&run->next, 1, memory_order_relaxed);
        for (; group < end; group++) {
            const int64_t items = group->splits > 1 ? (group[1].items - group->items) / group->splits : 0;
            if (index - before < items)
                break;
            before += items;
        }
        if (group == end)
            return;
        group_item g;
        index -= before;
        rows_at(run, group, index, &st, &g);
        for (int32_t i = 0; i < group->splits; i++) {
            partial from = part_at(run, group->part + index * group->splits + i);
            for (int64_t j = 0; j < g.count; j++) {
                const state *to = &g.members[j].st;
                for (size_t r = 0; r < g.members[j].it.rows; r++, from.o += dv, from.state += 3)
                    add_split(run, !i, to->sum_o + r * to->ldo, to->sum_m + r, to->sum_l + r, to->sum_valid + r, from.o,
                              from.state[0], from.state[1], from.state[2]);
            }
        }
        for (int64_t j = 0; j < g.count; j++)
            store_sums(run, &g.members[j]);
    }
}
