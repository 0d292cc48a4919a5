/* SPDX-License-Identifier: MIT */
/*
 * Tensor memory, and tcgen05's instructions on it. Of each cell, four bytes of a lane and a column, the last write and
 * the reads since then are known. Accesses by two threads are in order only if the first has been waited for, and a
 * tcgen05.fence::before_thread_sync, a barrier and a tcgen05.fence::after_thread_sync are between. Products are an
 * agent of their own, of the warp whose thread issues them: a commit publishes their clock at its mbarrier.
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

/* A product, or a commit. */
typedef struct operation {
    model_tcgen05 m;
    uint32_t barrier, sequence; /* of a commit; of the warp's products */
    int warp;
    bool commit;
    uint32_t copied[MODEL_MBARRIERS]; /* of a commit: what its thread knew of asynchronous copies */
    void *pc;
} operation;

static tensor_cell (*cells)[COLUMNS];
static uint16_t owner[COLUMNS / UNIT]; /* 1 + warp that allocated them, or 0 */
static bool relinquished, used;
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
    if (!cells)
        cells = malloc(LANES * sizeof *cells);
    if (!cells)
        abort();
    memset(owner, 0, sizeof owner);
    relinquished = used = false;
    transfer_count = operation_count = 0;
}

void model_tensor_end(void)
{
    if (operation_count)
        model_report_end("%zu tcgen05.mma and commits are in flight when the CTA ends", operation_count);
    for (int i = 0; used && i < COLUMNS / UNIT; i++)
        if (owner[i])
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

static tensor_cell *cell_at(const char *what, uint32_t lane, uint32_t column, void *pc)
{
    if (column >= COLUMNS || lane >= LANES || !owner[column / UNIT])
        report_cell(what, lane, column, "which is not allocated", NULL, pc);
    return &cells[lane][column];
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

/* tcgen05.alloc, relinquish_alloc_permit and dealloc, by whole warps. */
void model_tensor_allocation(warp *w, int first)
{
    const uint32_t *m = w->arguments[0];
    if (w->kind == MODEL_TENSOR_RELINQUISH) {
        relinquished = true;
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
        if (relinquished)
            model_report(w->pc, "allocates tensor memory after tcgen05.relinquish_alloc_permit");
        uint32_t at = 0;
        while (at < COLUMNS && owner[at / UNIT])
            at += columns;
        if (at >= COLUMNS)
            model_report(w->pc, "%u columns of tensor memory are not free", columns);
        for (uint32_t i = at; i < at + columns; i++) {
            owner[i / UNIT] = mine;
            for (int lane = 0; lane < LANES; lane++) {
                cells[lane][i] = (tensor_cell){.value = UINT32_MAX, .writer = NOBODY};
                for (int r = 0; r < READERS; r++)
                    cells[lane][i].reader[r] = NOBODY;
            }
        }
        used = true;
        thread *caller = model_now;
        model_now = &model_cta->thread[first];
        model_shared_access(m[0], 4, true, w->pc);
        memcpy(model_shared_bytes(model_cta, m[0], 4, w->pc), &at, sizeof at);
        model_now = caller;
        return;
    }
    /* tcgen05.dealloc: accesses have been waited for and happened before. */
    if (m[0] >> 16 || m[0] % UNIT || m[0] + columns > COLUMNS)
        model_report(w->pc, "frees %u columns of tensor memory at 0x%08x", columns, m[0]);
    const thread *t = model_now;
    for (uint32_t i = m[0]; i < m[0] + columns; i++)
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const tensor_cell *c = cell_at("frees", lane, i, w->pc);
            check_writer(t, c, "frees", lane, i, w->pc);
            check_readers(t, c, "frees", lane, i, w->pc);
        }
    for (uint32_t i = m[0]; i < m[0] + columns; i += UNIT)
        owner[i / UNIT] = 0;
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
        tensor_cell *c = &cells[t->lane][t->column + i];
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
            tensor_cell *c = cell_at(what, t->lane, t->column + i, w->pc);
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
        if (t->store != store || t->by->index / 32 != first / 32) {
            transfers[left++] = *t;
            continue;
        }
        if (!t->done)
            perform(t);
        for (uint32_t j = 0; j < t->count; j++) {
            tensor_cell *c = &cells[t->lane][t->column + j];
            if (store) {
                c->storing--;
                note_write(c, t->by->agent, t->by->clock[t->by->agent], UINT32_MAX, 0, t->pc);
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

static bool a_m_major(const model_tcgen05 *m)
{
    return m->instruction >> 15 & 1;
}

/* "Shared memory descriptor" */
static model_operand operand_of(uint64_t d, void *pc)
{
    if (d >> 61 != 2 || (d >> 46 & 7) != 1 || (d >> 49 & 0xfff))
        model_report(pc, "tcgen05's descriptor 0x%016llx has another layout than the 128-byte swizzle",
                     (unsigned long long)d);
    return model_operand_of(d);
}

static void check_instruction(const model_tcgen05 *m, void *pc)
{
    const uint32_t i = m->instruction, n = columns_of(m);
    if ((i & 15) || (i >> 4 & 3) != 1 || (i >> 6 & 1) || (i >> 7 & 7) > 1 || (i >> 7 & 7) != (i >> 10 & 7) ||
        (i >> 13 & 3) || (i >> 23 & 1) || i >> 29)
        model_report(pc, "tcgen05's instruction descriptor 0x%08x is not of float32 sums of f16 or bf16", i);
    if ((i >> 24 & 31) != 8 || !n || n > 256 || n % 16)
        model_report(pc, "tcgen05.mma of %u x %u: the model has 128 rows, and columns are multiples of 16 up to 256",
                     (i >> 24 & 31) * 16, n);
}

static void queue(const operation *made)
{
    operations = grow(operations, operation_count, &operation_space, sizeof *operations);
    operations[operation_count++] = *made;
}

/* tcgen05.mma of 128 rows: row i is lane i of D, and of A in tensor memory, which has two elements to a column. */
void model_tcgen05_issue(const model_tcgen05 *m)
{
    void *pc = __builtin_return_address(0);
    thread *me = model_now;
    warp *w = &model_cta->warps[me->index / 32];
    const int agent = model_cta->first_agent + (int)model_launch->dimensions.x + me->index / 32;
    check_instruction(m, pc);
    if (w->tensor_sequence && w->tensor_thread != me->index)
        model_report(pc, "the model has one thread of a warp that issues tcgen05.mma: here %d and %d", w->tensor_thread,
                     me->index);
    w->tensor_thread = me->index;
    const uint32_t sequence = ++w->tensor_sequence, n = columns_of(m);
    finding f = {.kind = FOUND_NOTHING};
    if (m->d >> 16)
        model_report(pc, "D of tcgen05.mma of 128 rows is at lane %u", m->d >> 16);
    const model_operand b = operand_of(m->descriptor_b, pc);
    model_operand_read(me->index / 32, &b, !(m->instruction >> 16 & 1), 0, (int)n, sequence, me->clock, &f, pc);
    if (!m->tensor_a) {
        const model_operand a = operand_of(m->descriptor_a, pc);
        model_operand_read(me->index / 32, &a, !a_m_major(m), 0, LANES, sequence, me->clock, &f, pc);
    } else if (m->a >> 16 || a_m_major(m)) {
        model_report(pc, "A of tcgen05.mma in tensor memory is at lane %u, or M-major", m->a >> 16);
    }
    if (f.kind)
        model_report_finding(&f, "multiplies", pc);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        for (uint32_t i = 0; m->tensor_a && i < 8; i++) {
            tensor_cell *c = cell_at("multiplies", lane, (m->a & 0xffff) + i, pc);
            check_read(me, c, "multiplies", lane, (m->a & 0xffff) + i, pc);
            note_read(c, agent, sequence, pc);
        }
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t column = m->d + i;
            tensor_cell *c = cell_at("accumulates", lane, column, pc);
            /* "Pipelined tcgen05 instructions": products with the same accumulator and shape are in order. */
            const bool pipelined = c->writer == agent && c->accumulator == m->d && c->shape == m->instruction;
            if (!pipelined)
                check_writer(me, c, "accumulates", lane, column, pc);
            check_readers(me, c, "accumulates", lane, column, pc);
            if (m->add && c->writer == NOBODY)
                report_cell("accumulates", lane, column, "which nobody has written", NULL, pc);
            note_write(c, agent, sequence, m->d, m->instruction, pc);
        }
    }
    queue(&(operation){.m = *m, .sequence = sequence, .warp = me->index / 32, .pc = pc});
}

static int first_mbarrier(void)
{
    return model_cta->first_agent + (int)model_launch->dimensions.x + model_readers;
}

/* tcgen05.commit. Products are after the copies whose barriers their thread has waited at, and so is its arrival. It
 * does not publish what the thread itself has read or written. */
void model_tcgen05_commit(uint32_t barrier)
{
    void *pc = __builtin_return_address(0);
    const warp *w = &model_cta->warps[model_now->index / 32];
    model_barrier_signalled(barrier, pc);
    operation made = {
        .barrier = barrier, .sequence = w->tensor_sequence, .warp = model_now->index / 32, .commit = true, .pc = pc};
    memcpy(made.copied, model_now->clock + first_mbarrier(), sizeof made.copied);
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

static void multiply(const operation *o)
{
    static float a[LANES][16], b[16][256];
    const model_tcgen05 *m = &o->m;
    const bool brain = m->instruction >> 7 & 1, n_major = m->instruction >> 16 & 1;
    const uint32_t n = columns_of(m);
    const model_operand left = model_operand_of(m->descriptor_a), right = model_operand_of(m->descriptor_b);
    for (int k = 0; k < 16; k++)
        for (uint32_t i = 0; i < n; i++)
            b[k][i] = model_operand_element(&right, !n_major, (int)i, k, brain);
    for (uint32_t lane = 0; lane < LANES; lane++)
        for (int k = 0; k < 16; k++)
            a[lane][k] = m->tensor_a ? of_half_word(cells[lane][(m->a & 0xffff) + (uint32_t)k / 2].value, k % 2, brain)
                                     : model_operand_element(&left, !a_m_major(m), (int)lane, k, brain);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        double sums[256];
        for (uint32_t i = 0; i < n; i++)
            sums[i] = m->add ? (double)of_bits(cells[lane][m->d + i].value) : 0.0;
        for (int k = 0; k < 16; k++)
            for (uint32_t i = 0; i < n; i++)
                sums[i] += (double)a[lane][k] * (double)b[k][i];
        for (uint32_t i = 0; i < n; i++) {
            const float x = model_truncated(sums[i]);
            memcpy(&cells[lane][m->d + i].value, &x, sizeof x);
        }
    }
}

bool model_tensor_complete(void)
{
    if (!operation_count)
        return false;
    const operation o = operations[0];
    memmove(operations, operations + 1, --operation_count * sizeof *operations);
    if (!o.commit)
        multiply(&o);
    else
        model_barrier_committed(o.barrier, (int)model_launch->dimensions.x + o.warp, o.sequence, o.copied);
    return true;
}
