/* SPDX-License-Identifier: MIT */
/*
 * Tensor memory, and tcgen05's instructions on it. Of each cell, four bytes of a lane and a column, the last write and
 * the reads since then are known. Accesses by two threads are in order only if the first has been waited for, and a
 * tcgen05.fence::before_thread_sync, a barrier and a tcgen05.fence::after_thread_sync are between. Products and copies
 * from shared memory are an agent of their own, of the warp whose thread issues them: a commit publishes their clock at
 * its mbarrier. Those of a pair of CTAs read the shared memory and write the tensor memory of both.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/model/model.h"

#define LANES   128
#define COLUMNS 512
#define UNIT    32 /* columns are allocated by it */
#define READERS 4

/* The accumulator of cells that a tcgen05.cp or st wrote. */
#define NO_ACCUMULATOR UINT32_MAX

typedef struct tensor_cell {
    uint32_t value, write_clock, read_clock[READERS];
    uint16_t writer, reader[READERS]; /* agents, or NOBODY */
    uint16_t loading, storing;        /* tcgen05.ld and st in flight, which their threads have not waited for */
    uint32_t accumulator, shape;      /* of the product that wrote it */
    void *write_pc, *read_pc, *pending_pc;
} tensor_cell;

/* A tcgen05.ld or st of a thread that it has not waited for. */
typedef struct transfer {
    bool store, done;
    thread *by;
    uint32_t lane, column, count;
    uint32_t *to;        /* registers */
    uint32_t values[32]; /* of a store */
    void *pc;
} transfer;

typedef struct operation {
    enum { MULTIPLY, COPY, COMMIT } kind;
    model_tcgen05 m;
    model_tensor_copy copy;
    uint32_t barrier, sequence; /* of a commit; of the warp's products and copies */
    cta *by;
    int warp;
    uint32_t mask;                                /* of a commit: the ranks at whose barriers it arrives */
    uint32_t copied[MODEL_CTAS][MODEL_MBARRIERS]; /* of a commit: what its thread knew of asynchronous copies */
    void *pc;
} operation;

/* Of a CTA. */
typedef struct tensor_memory {
    tensor_cell (*cells)[COLUMNS];
    uint16_t owner[COLUMNS / UNIT]; /* 1 + warp that allocated them, or 0 */
    bool relinquished, used;
    /* The last tcgen05.alloc or dealloc with .cta_group::2, which one warp of each CTA of the pair executes. */
    uint32_t met, columns;
    model_collective kind;
} tensor_memory;

static tensor_memory memories[MODEL_CTAS];
static int group; /* the .cta_group of the kernel's instructions; 0: none yet */
static transfer *transfers;
static size_t transfer_count, transfer_space;
static operation *operations;
static size_t operation_count, operation_space;

static void *grow(void *list, size_t count, size_t *space, size_t size)
{
    if (count < *space)
        return list;
    *space = 2 * *space + 64;
    list = realloc(list, *space * size);
    if (!list)
        abort();
    return list;
}

void model_tensor_begin(void)
{
    for (int i = 0; i < model_launch->ctas; i++) {
        tensor_cell(*cells)[COLUMNS] = memories[i].cells;
        if (!cells)
            cells = malloc(LANES * sizeof *cells);
        if (!cells)
            abort();
        memories[i] = (tensor_memory){.cells = cells};
    }
    group = 0;
    transfer_count = operation_count = 0;
}

void model_tensor_end(void)
{
    if (operation_count)
        model_report_end("%zu tcgen05.mma, cp and commits are in flight when the CTA ends", operation_count);
    for (int rank = 0; rank < model_launch->ctas; rank++)
        for (int i = 0; memories[rank].used && i < COLUMNS / UNIT; i++)
            if (memories[rank].owner[i])
                model_report_end("column %d of tensor memory is allocated when the CTA ends", i * UNIT);
}

size_t model_tensor_pending(void)
{
    return operation_count;
}

/* ----------------------------------------------------------------------------------------------------------- checks */

static _Noreturn void report_cell(const char *what, uint32_t lane, uint32_t column, const char *how, void *other,
                                  void *pc)
{
    char place[512] = "";
    if (other)
        model_place(place, sizeof place, other);
    model_report(pc, "%s lane %u column %u of tensor memory, %s%s%s", what, lane, column, how, *place ? "\n  at " : "",
                 place);
}

static tensor_cell *cell_at(const cta *in, const char *what, uint32_t lane, uint32_t column, void *pc)
{
    const tensor_memory *memory = &memories[in->rank];
    if (column >= COLUMNS || lane >= LANES || !memory->owner[column / UNIT])
        report_cell(what, lane, column,
                    in == model_cta ? "which is not allocated" : "which the pair's other CTA has not allocated", NULL,
                    pc);
    return &memory->cells[lane][column];
}

/* "All tcgen05 instructions within a kernel must specify the same value for the .cta_group qualifier." */
static void check_group(int ctas, void *pc)
{
    if (group && group != ctas)
        model_report(pc, "a kernel has tcgen05 instructions of .cta_group::1 and of .cta_group::2");
    if (ctas > model_launch->ctas)
        model_report(pc, "tcgen05 with .cta_group::2 in a kernel without a cluster of two CTAs");
    group = ctas;
}

/* Whether an access is ordered before the thread's to tensor memory: its own are, and those that fences order. */
static bool known(const thread *t, int agent, uint32_t clock)
{
    return agent == t->agent || t->ordered[agent] >= clock;
}

static void check_writer(const thread *t, const tensor_cell *c, const char *what, uint32_t lane, uint32_t column,
                         void *pc)
{
    if (c->storing)
        report_cell(what, lane, column, "which a tcgen05.st writes that its thread has not waited for", c->pending_pc,
                    pc);
    if (c->writer != NOBODY && !known(t, c->writer, c->write_clock))
        report_cell(what, lane, column,
                    t->clock[c->writer] >= c->write_clock ? "which was written without tcgen05.fence between"
                                                          : "which was written without a barrier between",
                    c->write_pc, pc);
}

static void check_read(const thread *t, const tensor_cell *c, const char *what, uint32_t lane, uint32_t column,
                       void *pc)
{
    check_writer(t, c, what, lane, column, pc);
    if (c->writer == NOBODY)
        report_cell(what, lane, column, "which nobody has written", NULL, pc);
}

static void check_readers(const thread *t, const tensor_cell *c, const char *what, uint32_t lane, uint32_t column,
                          void *pc)
{
    if (c->loading)
        report_cell(what, lane, column, "which a tcgen05.ld reads that its thread has not waited for", c->pending_pc,
                    pc);
    for (int i = 0; i < READERS; i++)
        if (c->reader[i] != NOBODY && !known(t, c->reader[i], c->read_clock[i]))
            report_cell(what, lane, column,
                        t->clock[c->reader[i]] >= c->read_clock[i] ? "which was read without tcgen05.fence between"
                                                                   : "which was read without a barrier between",
                        c->read_pc, pc);
}

static void note_read(tensor_cell *c, int agent, uint32_t clock, void *pc)
{
    int at = 0;
    for (int i = 0; i < READERS; i++)
        if (c->reader[i] == agent || c->reader[i] == NOBODY) {
            at = i;
            break;
        }
    c->reader[at] = (uint16_t)agent;
    c->read_clock[at] = clock;
    c->read_pc = pc;
}

static void note_write(tensor_cell *c, int agent, uint32_t clock, uint32_t accumulator, uint32_t shape, void *pc)
{
    c->writer = (uint16_t)agent;
    c->write_clock = clock;
    c->accumulator = accumulator;
    c->shape = shape;
    c->write_pc = pc;
    for (int i = 0; i < READERS; i++)
        c->reader[i] = NOBODY;
}

/* ------------------------------------------------------------------------------------------------------- allocation */

/* "Issue Granularity": with .cta_group::2 one warp of each CTA of the pair allocates and frees. They wait for each
 * other, which orders nothing else. */
static void meet(const warp *w, int first, uint32_t columns)
{
    static const char what[] = "the tcgen05.alloc or dealloc of the pair's other CTA",
                      of_lanes[] = "the tcgen05.alloc or dealloc of the pair's other CTA, too";
    tensor_memory *mine = &memories[model_cta->rank], *peer = &memories[model_cta->rank ^ 1];
    const uint32_t met = ++mine->met;
    mine->columns = columns;
    mine->kind = w->kind;
    if (peer->met >= met)
        for (int i = 0; i < MODEL_THREADS; i++)
            if (model_threads[i].state == THREAD_WAITING && model_threads[i].waits_for == what)
                model_threads[i].state = THREAD_READY;
    for (int i = 0; i < 32; i++)
        model_cta->thread[first + i].waits_for = of_lanes;
    while (peer->met < met)
        model_wait(what, w->pc);
    if (peer->met == met && (peer->columns != columns || peer->kind != w->kind))
        model_report(w->pc, "the CTAs of a pair allocate or free other tensor memory: %u and %u columns", columns,
                     peer->columns);
}

/* Accesses to what is freed have been waited for and happened before. */
static void check_freed(const cta *in, uint32_t begin, uint32_t columns, void *pc)
{
    for (uint32_t i = begin; i < begin + columns; i++)
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const tensor_cell *c = cell_at(in, "frees", lane, i, pc);
            check_writer(model_now, c, "frees", lane, i, pc);
            check_readers(model_now, c, "frees", lane, i, pc);
        }
}

/* tcgen05.alloc, relinquish_alloc_permit and dealloc, by whole warps. */
void model_tensor_allocation(warp *w, int first)
{
    const uint32_t *m = w->arguments[0];
    tensor_memory *memory = &memories[model_cta->rank];
    check_group((int)m[2], w->pc);
    if (w->kind == MODEL_TENSOR_RELINQUISH) {
        memory->relinquished = true;
        return;
    }
    const uint32_t columns = m[1];
    if (columns < UNIT || columns > COLUMNS || (columns & (columns - 1)))
        model_report(w->pc, "%u columns of tensor memory: they are a power of two from %d to %d", columns, UNIT,
                     COLUMNS);
    for (int lane = 1; lane < 32; lane++)
        if (memcmp(w->arguments[lane], m, 2 * sizeof *m) != 0)
            model_report(w->pc, "lanes 0 and %d of a warp allocate or free other tensor memory", lane);
    const uint16_t mine = (uint16_t)(1 + first / 32);
    if (w->kind == MODEL_TENSOR_ALLOCATE) {
        if (memory->relinquished)
            model_report(w->pc, "allocates tensor memory after tcgen05.relinquish_alloc_permit");
        if (m[2] == 2)
            meet(w, first, columns);
        uint32_t at = 0;
        while (at < COLUMNS && memory->owner[at / UNIT])
            at += columns;
        if (at >= COLUMNS)
            model_report(w->pc, "%u columns of tensor memory are not free", columns);
        for (uint32_t i = at; i < at + columns; i++) {
            memory->owner[i / UNIT] = mine;
            for (int lane = 0; lane < LANES; lane++) {
                memory->cells[lane][i] = (tensor_cell){.value = UINT32_MAX, .writer = NOBODY};
                for (int r = 0; r < READERS; r++)
                    memory->cells[lane][i].reader[r] = NOBODY;
            }
        }
        memory->used = true;
        thread *caller = model_now;
        model_now = &model_cta->thread[first];
        model_shared_access(m[0], 4, true, w->pc);
        memcpy(model_shared_bytes(model_cta, m[0], 4, w->pc), &at, sizeof at);
        model_now = caller;
        return;
    }
    /* tcgen05.dealloc; with .cta_group::2 each of the two warps frees what both CTAs may still use. */
    if (m[0] >> 16 || m[0] % UNIT || m[0] + columns > COLUMNS)
        model_report(w->pc, "frees %u columns of tensor memory at 0x%08x", columns, m[0]);
    check_freed(model_cta, m[0], columns, w->pc);
    if (m[2] == 2) {
        check_freed(&model_ctas[model_cta->rank ^ 1], m[0], columns, w->pc);
        meet(w, first, columns);
    }
    for (uint32_t i = m[0]; i < m[0] + columns; i += UNIT)
        memory->owner[i / UNIT] = 0;
}

/* tcgen05.fence::before_thread_sync and after_thread_sync. Clocks have a third part, of what is fenced: barriers hand
 * it on, and the fence after them takes it. */
void model_tensor_fence(int after)
{
    thread *me = model_now;
    uint32_t *fenced = me->clock + 2 * model_agents;
    if (model_clock_words < 3 * model_agents)
        model_report(__builtin_return_address(0), "tcgen05 on a device that has none");
    for (int i = 0; i < model_agents; i++)
        if (after)
            me->ordered[i] = me->ordered[i] > fenced[i] ? me->ordered[i] : fenced[i];
        else
            fenced[i] = fenced[i] > me->ordered[i] ? fenced[i] : me->ordered[i];
    if (!after) {
        fenced[me->agent] = me->clock[me->agent];
        model_tick(me);
    }
}

/* -------------------------------------------------------------------------------------------------- loads and stores
 */

static void perform(transfer *t)
{
    for (uint32_t i = 0; i < t->count; i++) {
        tensor_cell *c = &memories[t->by->cta->rank].cells[t->lane][t->column + i];
        if (t->store)
            c->value = t->values[i];
        else
            t->to[i] = c->value;
    }
    t->done = true;
}

/* tcgen05.ld and st, .32x32b: lane i of a warp has lane i of the 32 that its number modulo 4 allows. */
void model_tensor_transfer(warp *w, int first)
{
    const bool store = w->kind == MODEL_TENSOR_STORE;
    const char *what = store ? "stores" : "loads";
    thread *caller = model_now;
    const uint32_t quarter = (uint32_t)first / 32 % 4 * 32;
    for (uint32_t lane = 0; lane < 32; lane++) {
        const model_tensor_access *m = w->arguments[lane];
        model_now = &model_cta->thread[first + (int)lane];
        if (m->address != ((const model_tensor_access *)w->arguments[0])->address)
            model_report(w->pc, "lanes 0 and %u of a warp have other addresses of tensor memory", lane);
        if (m->address >> 16 != quarter)
            model_report(w->pc, "%s lanes from %u on of tensor memory: those of this warp begin at %u", what,
                         m->address >> 16, quarter);
        transfers = grow(transfers, transfer_count, &transfer_space, sizeof *transfers);
        transfer *t = &transfers[transfer_count++];
        *t = (transfer){.store = store,
                        .by = model_now,
                        .lane = quarter + lane,
                        .column = m->address & 0xffff,
                        .count = m->count,
                        .to = m->r,
                        .pc = w->pc};
        for (uint32_t i = 0; i < m->count; i++) {
            tensor_cell *c = cell_at(model_cta, what, t->lane, t->column + i, w->pc);
            if (store) {
                check_writer(model_now, c, what, t->lane, t->column + i, w->pc);
                check_readers(model_now, c, what, t->lane, t->column + i, w->pc);
                t->values[i] = m->r[i];
                c->storing++;
                c->value = UINT32_MAX;
            } else {
                check_read(model_now, c, what, t->lane, t->column + i, w->pc);
                c->loading++;
                m->r[i] = UINT32_MAX;
            }
            c->pending_pc = w->pc;
        }
        model_now->transfers++;
    }
    model_now = caller;
    if (model_random() >> 32 & 1)
        for (size_t i = transfer_count - 32; i < transfer_count; i++)
            perform(&transfers[i]);
}

/* tcgen05.wait::ld and wait::st, of all that the warp's threads have issued. */
void model_tensor_wait(const warp *w, int first)
{
    const bool store = w->kind == MODEL_TENSOR_WAIT_STORE;
    size_t left = 0;
    for (size_t i = 0; i < transfer_count; i++) {
        transfer *t = &transfers[i];
        if (t->store != store || t->by->cta != model_cta || t->by->index / 32 != first / 32) {
            transfers[left++] = *t;
            continue;
        }
        if (!t->done)
            perform(t);
        for (uint32_t j = 0; j < t->count; j++) {
            tensor_cell *c = &memories[model_cta->rank].cells[t->lane][t->column + j];
            if (store) {
                c->storing--;
                note_write(c, t->by->agent, t->by->clock[t->by->agent], NO_ACCUMULATOR, 0, t->pc);
            } else {
                c->loading--;
                note_read(c, t->by->agent, t->by->clock[t->by->agent], t->pc);
            }
        }
        t->by->transfers--;
    }
    transfer_count = left;
}

void model_tensor_registers(const thread *t, const void *at, size_t size, void *pc)
{
    const unsigned char *from = at;
    for (size_t i = 0; i < transfer_count; i++) {
        const transfer *x = &transfers[i];
        const unsigned char *begin = (const unsigned char *)x->to;
        if (x->by != t || x->store || from >= begin + x->count * 4 || from + size <= begin)
            continue;
        char place[512];
        model_place(place, sizeof place, x->pc);
        model_report(pc, "uses registers of a tcgen05.ld that its thread has not waited for\n  from %s", place);
    }
}

/* --------------------------------------------------------------------------------------------------------- products */

/* "Instruction descriptor" */
static uint32_t columns_of(const model_tcgen05 *m)
{
    return (m->instruction >> 17 & 63) * 8;
}

/* Rows of A and D in all CTAs. */
static uint32_t rows_of(const model_tcgen05 *m)
{
    return (m->instruction >> 24 & 31) * 16;
}

static bool a_m_major(const model_tcgen05 *m)
{
    return m->instruction >> 15 & 1;
}

/*
 * "Data Path Layout Organization": of 128 rows of a CTA (layouts D, and A of a pair) row i is lane i. Of a pair's 128
 * rows each CTA has 64, and lanes 64 to 127 have the second half of their columns (layout B).
 */
static bool is_folded(const model_tcgen05 *m)
{
    return m->ctas == 2 && rows_of(m) == LANES;
}

/* Columns of tensor memory that D has in a CTA. */
static uint32_t d_columns(const model_tcgen05 *m)
{
    return columns_of(m) / (is_folded(m) ? 2 : 1);
}

/* "Shared memory descriptor" */
static model_operand operand_of(uint64_t d, void *pc)
{
    if (d >> 61 != 2 || (d >> 46 & 7) != 1 || (d >> 49 & 0xfff))
        model_report(pc, "tcgen05's descriptor 0x%016llx has another layout than the 128-byte swizzle",
                     (unsigned long long)d);
    return model_operand_of(d);
}

/* "Pipelined tcgen05 instructions": a thread's products come after the copies that it issued before them. */
static bool is_copied(const tensor_cell *c, int agent)
{
    return c->writer == agent && c->accumulator == NO_ACCUMULATOR && !c->storing;
}

/* "Matrix Shape" */
static void check_instruction(const model_tcgen05 *m, void *pc)
{
    const uint32_t i = m->instruction, n = columns_of(m), rows = rows_of(m);
    if ((i & 15) || (i >> 4 & 3) != 1 || (i >> 6 & 1) || (i >> 7 & 7) > 1 || (i >> 7 & 7) != (i >> 10 & 7) ||
        (i >> 13 & 3) || (i >> 23 & 1) || i >> 29)
        model_report(pc, "tcgen05's instruction descriptor 0x%08x is not of float32 sums of f16 or bf16", i);
    if (m->ctas == 2 && ((rows != 128 && rows != 256) || !n || n > 256 || n % 32))
        model_report(pc,
                     "tcgen05.mma of %u x %u by a pair of CTAs: it has 128 or 256 rows, and columns are multiples of "
                     "32 up to 256",
                     rows, n);
    if (m->ctas == 1 && (rows != 128 || !n || n > 256 || n % 16))
        model_report(pc, "tcgen05.mma of %u x %u: the model has 128 rows, and columns are multiples of 16 up to 256",
                     rows, n);
}

/* "Issue Granularity": one thread of a pair issues its products and commits, which is one of the CTA of even rank. */
static void check_issuer(int ctas, void *pc)
{
    check_group(ctas, pc);
    if (ctas == 2 && model_cta->rank)
        model_report(pc, "the CTA of odd rank issues tcgen05 instructions of its pair, which that of even rank issues");
}

static void queue(const operation *made)
{
    operations = grow(operations, operation_count, &operation_space, sizeof *operations);
    operations[operation_count++] = *made;
}

/* The operands that a product reads in the shared memory of one CTA: all rows of A that it has, and of a pair's B half
 * the columns. */
static void read_shared(cta *in, const model_tcgen05 *m, uint32_t sequence, void *pc)
{
    const thread *me = model_now;
    const int by = me->cta->rank, reader = me->index / 32;
    finding f = {.kind = FOUND_NOTHING};
    const model_operand b = operand_of(m->descriptor_b, pc);
    model_operand_read(in, by, reader, &b, !(m->instruction >> 16 & 1), 0, (int)columns_of(m) / m->ctas, sequence,
                       me->clock, &f, pc);
    if (!m->tensor_a) {
        const model_operand a = operand_of(m->descriptor_a, pc);
        model_operand_read(in, by, reader, &a, !a_m_major(m), 0, (int)rows_of(m) / m->ctas, sequence, me->clock, &f,
                           pc);
    } else if (m->a >> 16 || a_m_major(m) || is_folded(m)) {
        model_report(pc, "A of tcgen05.mma in tensor memory is at lane %u, or M-major, or 64 rows of a CTA",
                     m->a >> 16);
    }
    if (f.kind)
        model_report_finding(&f, "multiplies", pc);
}

/* The same of tensor memory. */
static void use_tensor(const cta *in, const model_tcgen05 *m, int agent, uint32_t sequence, void *pc)
{
    const thread *me = model_now;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        for (uint32_t i = 0; m->tensor_a && i < 8; i++) {
            tensor_cell *c = cell_at(in, "multiplies", lane, (m->a & 0xffff) + i, pc);
            if (!is_copied(c, agent))
                check_read(me, c, "multiplies", lane, (m->a & 0xffff) + i, pc);
            note_read(c, agent, sequence, pc);
        }
        for (uint32_t i = 0; i < d_columns(m); i++) {
            const uint32_t column = m->d + i;
            tensor_cell *c = cell_at(in, "accumulates", lane, column, pc);
            /* So are products with the same accumulator and shape. */
            const bool pipelined = c->writer == agent && c->accumulator == m->d && c->shape == m->instruction;
            if (!pipelined && !is_copied(c, agent))
                check_writer(me, c, "accumulates", lane, column, pc);
            check_readers(me, c, "accumulates", lane, column, pc);
            if (m->add && c->writer == NOBODY)
                report_cell("accumulates", lane, column, "which nobody has written", NULL, pc);
            note_write(c, agent, sequence, m->d, m->instruction, pc);
        }
    }
}

/* The clock of a product or copy that this thread issues, of its warp's agent. */
static uint32_t begin(int ctas, void *pc)
{
    const thread *me = model_now;
    warp *w = &model_cta->warps[me->index / 32];
    check_issuer(ctas, pc);
    if (w->tensor_sequence && w->tensor_thread != me->index)
        model_report(pc, "the model has one thread of a warp that issues tcgen05.mma and cp: here %d and %d",
                     w->tensor_thread, me->index);
    w->tensor_thread = me->index;
    return ++w->tensor_sequence;
}

static int agent_of(const cta *c, int index)
{
    return c->first_agent + (int)model_launch->dimensions.x + index;
}

/* tcgen05.mma. A in tensor memory has two elements to a column. A pair's CTA of rank 0 has the first rows of A and D
 * and the first columns of B, at the same addresses as the other CTA. */
void model_tcgen05_issue(const model_tcgen05 *m)
{
    void *pc = __builtin_return_address(0);
    const int index = model_now->index / 32;
    const uint32_t sequence = begin(m->ctas, pc);
    check_instruction(m, pc);
    if (m->d >> 16)
        model_report(pc, "D of tcgen05.mma of 128 rows is at lane %u", m->d >> 16);
    for (int i = 0; i < m->ctas; i++)
        read_shared(&model_ctas[model_cta->rank ^ i], m, sequence, pc);
    for (int i = 0; i < m->ctas; i++)
        use_tensor(&model_ctas[model_cta->rank ^ i], m, agent_of(model_cta, index), sequence, pc);
    queue(&(operation){.m = *m, .sequence = sequence, .by = model_cta, .warp = index, .pc = pc});
}

/* tcgen05.commit. Products are after the bulk copies whose barriers their thread has waited at, and so is its arrival.
 * It does not publish what the thread itself has read or written. With .multicast::cluster it arrives at the barriers
 * at the same address of all CTAs of the mask. */
void model_tcgen05_commit(uint32_t barrier, int ctas, uint32_t mask)
{
    void *pc = __builtin_return_address(0);
    const warp *w = &model_cta->warps[model_now->index / 32];
    check_issuer(ctas, pc);
    if (mask >> model_launch->ctas)
        model_report(pc, "tcgen05.commit to the CTAs 0x%x of a cluster of %d", mask, model_launch->ctas);
    operation made = {.kind = COMMIT,
                      .barrier = barrier,
                      .sequence = w->tensor_sequence,
                      .by = model_cta,
                      .warp = model_now->index / 32,
                      .mask = mask ? mask : 1u << model_cta->rank,
                      .pc = pc};
    for (int rank = 0; rank < model_launch->ctas; rank++) {
        memcpy(made.copied[rank], model_now->clock + model_first_mbarrier(&model_ctas[rank]), sizeof made.copied[rank]);
        if (made.mask >> rank & 1)
            model_barrier_signalled(&model_ctas[rank], barrier, pc);
    }
    queue(&made);
}

static float of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float of_half_word(uint32_t word, int high, bool brain)
{
    const uint32_t bits = high ? word >> 16 : word & 0xffff;
    return brain ? of_bits(bits << 16) : model_half(bits);
}

/* A row of A of the CTA, of which a pair's has the second half of B's columns only where it is folded. */
static void multiply_row(const cta *in, const operation *o, uint32_t lane, float (*b)[256])
{
    const model_tcgen05 *m = &o->m;
    const bool brain = m->instruction >> 7 & 1;
    const model_operand left = model_operand_of(m->descriptor_a);
    tensor_cell *cells = memories[in->rank].cells[lane];
    const uint32_t n = d_columns(m), row = is_folded(m) ? lane % 64 : lane, first = is_folded(m) ? lane / 64 * n : 0;
    float a[16];
    double sums[256];
    for (int k = 0; k < 16; k++)
        a[k] = m->tensor_a ? of_half_word(cells[(m->a & 0xffff) + (uint32_t)k / 2].value, k % 2, brain)
                           : model_operand_element(in, &left, !a_m_major(m), (int)row, k, brain);
    for (uint32_t i = 0; i < n; i++)
        sums[i] = m->add ? (double)of_bits(cells[m->d + i].value) : 0.0;
    for (int k = 0; k < 16; k++)
        for (uint32_t i = 0; i < n; i++)
            sums[i] += (double)a[k] * (double)b[k][first + i];
    for (uint32_t i = 0; i < n; i++) {
        const float x = model_truncated(sums[i]);
        memcpy(&cells[m->d + i].value, &x, sizeof x);
    }
}

static void multiply(const operation *o)
{
    static float b[16][256];
    const model_tcgen05 *m = &o->m;
    const bool brain = m->instruction >> 7 & 1, n_major = m->instruction >> 16 & 1;
    const uint32_t each = columns_of(m) / (uint32_t)m->ctas;
    const model_operand right = model_operand_of(m->descriptor_b);
    for (uint32_t i = 0; i < columns_of(m); i++) {
        const cta *in = m->ctas == 2 ? &model_ctas[i / each] : o->by;
        for (int k = 0; k < 16; k++)
            b[k][i] = model_operand_element(in, &right, !n_major, (int)(i % each), k, brain);
    }
    for (int i = 0; i < m->ctas; i++)
        for (uint32_t lane = 0; lane < LANES; lane++)
            multiply_row(&model_ctas[o->by->rank ^ i], o, lane, b);
}

/* ----------------------------------------------------------------------------------------------------------- copies */

/* Each row goes to one of the lanes once, and of fewer than 128 rows to others, too. */
static uint32_t copies_of(const model_tensor_copy *c)
{
    return c->rows == 4 ? 1 : LANES / (uint32_t)c->rows;
}

/* Of .warpx2::02_13 rows 0 to 31 go to warps 0 and 2 and the others to 1 and 3, of .warpx2::01_23 to 0 and 1, and to 2
 * and 3. Of four rows each goes to another warp. */
static uint32_t lane_of(const model_tensor_copy *c, uint32_t row, uint32_t copy)
{
    if (c->rows == 4)
        return (c->to >> 16) + row * 32;
    if (c->multicast == MODEL_MULTICAST_01_23)
        return row / 32 * 64 + row % 32 + copy * 32;
    return row + copy * (uint32_t)c->rows;
}

/* "Shared Memory Matrix Layout", K-major: the address of 16 bytes of a row. Groups of 8 rows are `stride` apart.
 * Without a swizzle each has 128 bytes with 16 of each row, and the next 16 of them are `leading` further. */
static uint32_t source_of(const model_tensor_copy *c, uint32_t row, uint32_t chunk)
{
    const model_operand o = model_operand_of(c->descriptor);
    if (!(c->descriptor >> 61))
        return o.start + row / 8 * o.stride + row % 8 * 16 + chunk * o.leading;
    const uint32_t at = o.start + row / 8 * o.stride + row % 8 * 128 + chunk * 16;
    return at ^ (at >> 7 & 7) << 4;
}

static void check_copy(const model_tensor_copy *c, void *pc)
{
    static const struct {
        int rows, bits;
        model_multicast multicast;
    } shapes[] = {{128, 256, MODEL_MULTICAST_NONE}, {128, 128, MODEL_MULTICAST_NONE}, {64, 128, MODEL_MULTICAST_02_13},
                  {64, 128, MODEL_MULTICAST_01_23}, {32, 128, MODEL_MULTICAST_4},     {4, 256, MODEL_MULTICAST_NONE}};
    const uint64_t d = c->descriptor, swizzle = d >> 61;
    const uint32_t lane = c->to >> 16;
    bool found = false;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        found |= shapes[i].rows == c->rows && shapes[i].bits == c->bits && shapes[i].multicast == c->multicast;
    if (!found)
        model_report(pc,
                     "tcgen05.cp of the shape .%dx%db: there are .128x256b, .128x128b and .4x256b, and .64x128b with "
                     ".warpx2 and .32x128b with .warpx4",
                     c->rows, c->bits);
    if (c->format)
        model_report(pc, "tcgen05.cp from the format .%s: the model does not decompress, and has no .src_fmt",
                     c->format == MODEL_FORMAT_B6X16_P32 ? "b6x16_p32" : "b4x16_p64");
    if ((swizzle && swizzle != 2) || (d >> 46 & 7) != 1 || (d >> 49 & 0xfff))
        model_report(pc, "tcgen05.cp's descriptor 0x%016llx has another layout than none or the 128-byte swizzle",
                     (unsigned long long)d);
    if (swizzle && (d << 4 & 127) + (uint64_t)c->bits / 8 > 128)
        model_report(pc, "tcgen05.cp reads bytes %u to %u of rows of 128, which the 128-byte swizzle has",
                     (uint32_t)(d << 4 & 127), (uint32_t)(d << 4 & 127) + (uint32_t)c->bits / 8 - 1);
    if (lane >= (c->rows == 4 ? 32u : 1u))
        model_report(pc, "tcgen05.cp of %d rows to lane %u: the first of them goes to one of lanes 0 to %d", c->rows,
                     lane, c->rows == 4 ? 31 : 0);
}

/* Copies to a CTA's tensor memory, and its shared memory. */
static void use_copied(cta *in, const model_tensor_copy *c, uint32_t sequence, void *pc)
{
    const thread *me = model_now;
    const int reader = me->index / 32;
    finding f = {.kind = FOUND_NOTHING};
    for (uint32_t row = 0; row < (uint32_t)c->rows; row++)
        for (uint32_t chunk = 0; chunk < (uint32_t)c->bits / 128; chunk++) {
            const uint32_t at = source_of(c, row, chunk);
            model_shared_bytes(in, at, 16, pc);
            model_async_read(in, at, 16, me->cta->rank, reader, sequence, me->clock, &f, pc);
        }
    if (f.kind)
        model_report_finding(&f, "copies", pc);
    for (uint32_t i = 0; i < (uint32_t)c->rows * copies_of(c); i++)
        for (uint32_t word = 0; word < (uint32_t)c->bits / 32; word++) {
            const uint32_t lane = lane_of(c, i % (uint32_t)c->rows, i / (uint32_t)c->rows),
                           column = (c->to & 0xffff) + word;
            tensor_cell *to = cell_at(in, "copies to", lane, column, pc);
            check_writer(me, to, "copies to", lane, column, pc);
            check_readers(me, to, "copies to", lane, column, pc);
            note_write(to, agent_of(me->cta, reader), sequence, NO_ACCUMULATOR, 0, pc);
        }
}

/* tcgen05.cp. Only products are in order after it, of a thread's other operations, and it is after none of them. Each
 * CTA of a pair copies from its own shared memory. */
void model_tcgen05_copy(const model_tensor_copy *c)
{
    void *pc = __builtin_return_address(0);
    const uint32_t sequence = begin(c->ctas, pc);
    check_copy(c, pc);
    for (int i = 0; i < c->ctas; i++)
        use_copied(&model_ctas[model_cta->rank ^ i], c, sequence, pc);
    queue(&(operation){
        .kind = COPY, .copy = *c, .sequence = sequence, .by = model_cta, .warp = model_now->index / 32, .pc = pc});
}

static void copy(const operation *o)
{
    const model_tensor_copy *c = &o->copy;
    for (int rank = 0; rank < c->ctas; rank++) {
        const cta *in = &model_ctas[o->by->rank ^ rank];
        for (uint32_t i = 0; i < (uint32_t)c->rows * copies_of(c); i++)
            for (uint32_t word = 0; word < (uint32_t)c->bits / 32; word++) {
                const uint32_t row = i % (uint32_t)c->rows, lane = lane_of(c, row, i / (uint32_t)c->rows);
                memcpy(&memories[in->rank].cells[lane][(c->to & 0xffff) + word].value,
                       in->shared + source_of(c, row, word / 4) + word % 4 * 4, 4);
            }
    }
}

bool model_tensor_complete(void)
{
    if (!operation_count)
        return false;
    const operation o = operations[0];
    memmove(operations, operations + 1, --operation_count * sizeof *operations);
    if (o.kind != COMMIT) {
        (o.kind == COPY ? copy : multiply)(&o);
        return true;
    }
    for (int rank = 0; rank < model_launch->ctas; rank++)
        if (o.mask >> rank & 1)
            model_barrier_committed(&model_ctas[rank], o.barrier,
                                    o.by->first_agent + (int)model_launch->dimensions.x + o.warp, o.sequence, o.copied);
    return true;
}
