/* SPDX-License-Identifier: MIT */
/*
 * wgmma. Each warp of a warp group has 16 of the 64 rows, and waits for them alone, so that each is computed by
 * itself; that all four execute the same is checked. A product is computed when it is issued or when it is waited for,
 * at random: in between its operands must not change, and its accumulators are nobody's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/model/model.h"

#define MOST_PENDING 256

static int index_of(const warp *w)
{
    return (int)(w - model_cta->warps);
}

/* --------------------------------------------------------------------------------------------------------- operands */

model_operand model_operand_of(uint64_t d)
{
    return (model_operand){.start = (uint32_t)(d & 0x3fff) << 4,
                           .leading = (uint32_t)(d >> 16 & 0x3fff) << 4,
                           .stride = (uint32_t)(d >> 32 & 0x3fff) << 4};
}

static model_operand decode(uint64_t d, void *pc)
{
    if (d >> 62 != 1 || (d >> 49 & 7))
        model_report(pc, "wgmma's descriptor 0x%016llx has another layout than the 128-byte swizzle",
                     (unsigned long long)d);
    return model_operand_of(d);
}

/* "Shared Memory Matrix Layout": the address of an operand's row (or column of B) i and k. K-major: 8 rows of 128
 * bytes, `stride` apart. M- or N-major: 64 columns of 8 k, which are `stride` apart in k and `leading` in columns. */
static uint32_t address_of(const model_operand *d, bool k_major, int i, int k)
{
    const uint32_t at = k_major ? d->start + (uint32_t)i / 8 * d->stride + (uint32_t)i % 8 * 128 + (uint32_t)k * 2
                                : d->start + (uint32_t)i / 64 * d->leading + (uint32_t)k / 8 * d->stride +
                                      (uint32_t)k % 8 * 128 + (uint32_t)i % 64 * 2;
    return at ^ (at >> 7 & 7) << 4;
}

/* Marks an operand as read: 16 bytes at a time, which the swizzle keeps together. */
void model_operand_read(cta *in, int rank, int reader, const model_operand *d, bool k_major, int first, int count,
                        uint32_t clock, const uint32_t *as, finding *f, void *pc)
{
    const int rows = k_major ? count : 16, chunks = k_major ? 2 : count / 8;
    for (int row = 0; row < rows; row++)
        for (int chunk = 0; chunk < chunks; chunk++) {
            const uint32_t at =
                k_major ? address_of(d, true, first + row, chunk * 8) : address_of(d, false, first + chunk * 8, row);
            model_shared_bytes(in, at, 16, pc);
            model_async_read(in, at, 16, rank, reader, clock, as, f, pc);
        }
}

static float element(const unsigned char *shared, uint32_t at, bool brain)
{
    uint16_t bits;
    memcpy(&bits, shared + at, sizeof bits);
    if (!brain)
        return model_half(bits);
    const uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

float model_operand_element(const cta *in, const model_operand *o, bool k_major, int i, int k, bool brain)
{
    return element(in->shared, address_of(o, k_major, i, k), brain);
}

static float of_register(uint32_t word, int high, bool brain)
{
    if (!brain)
        return model_half(word >> 16 * high);
    const uint32_t wide = high ? word & 0xffff0000u : word << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

/* "Register Fragments": of the 16 rows of a warp, lane l has rows l / 4 and l / 4 + 8; of D columns 8 j + l % 4 * 2 and
 * the next, of A columns l % 4 * 2 and the next, and those 8 further. */
static void compute(const warp *w, const pending_wgmma *p)
{
    static float a[16][16], b[16][256];
    static double sums[256];
    const model_wgmma *m = &p->lane[0];
    const model_operand left = model_operand_of(m->descriptor_a), right = decode(m->descriptor_b, p->pc);
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < m->columns; n++)
            b[k][n] = model_operand_element(model_cta, &right, !m->n_major, n, k, m->brain);
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            a[row][k] =
                m->a ? of_register(p->lane[row % 8 * 4 + k % 8 / 2].a[k / 8 * 2 + row / 8], k % 2, m->brain)
                     : model_operand_element(model_cta, &left, !m->m_major, index_of(w) % 4 * 16 + row, k, m->brain);
    for (int row = 0; row < 16; row++) {
        for (int n = 0; n < m->columns; n++)
            sums[n] = m->add ? (double)p->lane[row % 8 * 4 + n % 8 / 2].d[n / 8 * 4 + row / 8 * 2 + n % 2] : 0.0;
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < m->columns; n++)
                sums[n] += (double)a[row][k] * (double)b[k][n];
        for (int n = 0; n < m->columns; n++)
            p->lane[row % 8 * 4 + n % 8 / 2].d[n / 8 * 4 + row / 8 * 2 + n % 2] = model_truncated(sums[n]);
    }
}

/* --------------------------------------------------------------------------------------------------------- products */

static void drop(warp *w, const product *p)
{
    if (!p->live || p->used)
        return;
    for (uint32_t group = p->first; group <= p->last; group++)
        w->unused[group / 8 % sizeof w->unused] |= (uint8_t)(1 << group % 8);
}

static product *product_of(warp *w, const pending_wgmma *p)
{
    product *at = NULL;
    for (uint32_t i = 0; i < w->product_count && !at; i++)
        if (w->products[i].d[0] == p->lane[0].d)
            at = &w->products[i];
    /* Another d in the same place: that one is no more. */
    for (uint32_t i = 0; i < w->product_count && !at; i++)
        if (p->lane[0].d < w->products[i].d[0] + w->products[i].count &&
            w->products[i].d[0] < p->lane[0].d + p->lane[0].columns / 2)
            at = &w->products[i];
    if (!at && w->product_count < MODEL_PRODUCTS)
        at = &w->products[w->product_count++];
    if (!at) {
        at = &w->products[0];
        for (uint32_t i = 1; i < MODEL_PRODUCTS; i++)
            if (w->products[i].last < at->last)
                at = &w->products[i];
    }
    if (!p->lane[0].add || at->d[0] != p->lane[0].d) {
        drop(w, at);
        const bool modified = p->lane[0].add && at->modified;
        *at = (product){.modified = modified};
    }
    for (int i = 0; i < 32; i++)
        at->d[i] = p->lane[i].d;
    at->count = (uint32_t)p->lane[0].columns / 2;
    at->first = at->live ? at->first : p->group;
    at->last = p->group;
    at->live = true;
    at->used = false;
    at->pc = p->pc;
    return at;
}

/* The clock of all lanes of the warp: the oldest of each. */
static const uint32_t *common_clock(int first)
{
    static uint32_t common[2 * MODEL_AGENTS];
    memcpy(common, model_cta->thread[first].clock, 2 * (size_t)model_agents * sizeof *common);
    for (int lane = 1; lane < 32; lane++) {
        const uint32_t *other = model_cta->thread[first + lane].clock;
        for (int i = 0; i < 2 * model_agents; i++)
            common[i] = other[i] < common[i] ? other[i] : common[i];
    }
    return common;
}

/* The n-th wgmma of the four warps of a group must be the same one. */
static void check_group(warp *w, const pending_wgmma *p)
{
    const model_wgmma *m = &p->lane[0];
    for (int lane = 1; lane < 32; lane++) {
        const model_wgmma *other = &p->lane[lane];
        if (other->descriptor_b != m->descriptor_b || other->descriptor_a != m->descriptor_a || other->add != m->add)
            model_report(p->pc, "lanes 0 and %d of a warp have other operands of wgmma", lane);
    }
    const uint64_t values[] = {m->descriptor_a, m->descriptor_b, (uint64_t)m->columns,
                               (uint64_t)(m->add | m->m_major << 1 | m->n_major << 2), (uintptr_t)p->pc};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        w->sequence = (w->sequence ^ values[i]) * UINT64_C(1099511628211);
    w->issued++;
    const int first = index_of(w) / 4 * 4;
    for (int i = first; i < first + 4; i++) {
        const warp *other = &model_cta->warps[i];
        if (other->issued == w->issued && other->sequence != w->sequence)
            model_report(p->pc, "warps %d and %d of a group execute other wgmmas", i, index_of(w));
    }
}

/* A taint: told when the product is used. */
static void taint(product *p, const finding *f, const char *what, void *pc)
{
    if (p->fault.kind)
        return;
    p->fault = *f;
    p->what = what;
    p->fault_pc = pc;
}

static void compute_until(warp *w, uint32_t end)
{
    for (; w->done_count < end; w->done_count++)
        compute(w, &w->pending[w->done_count]);
}

/* wgmma.mma_async */
void model_wgmma_issue(warp *w, int first)
{
    if (!w->pending) {
        w->pending = malloc(MOST_PENDING * sizeof *w->pending);
        if (!w->pending)
            abort();
    }
    if (w->pending_count == MOST_PENDING)
        model_report(w->pc, "more than %d wgmmas that nobody has waited for", MOST_PENDING);
    pending_wgmma *p = &w->pending[w->pending_count];
    p->group = w->group;
    p->pc = w->pc;
    for (int lane = 0; lane < 32; lane++)
        p->lane[lane] = *(const model_wgmma *)w->arguments[lane];
    const model_wgmma *m = &p->lane[0];
    check_group(w, p);
    p->into = product_of(w, p);
    if (p->into->modified)
        model_report(p->pc, "the accumulators of wgmma were changed without a wgmma.fence after it");
    finding f = {.kind = FOUND_NOTHING};
    const uint32_t *as = common_clock(first);
    if (!m->a) {
        const model_operand left = decode(m->descriptor_a, p->pc);
        model_operand_read(model_cta, model_cta->rank, index_of(w), &left, !m->m_major, index_of(w) % 4 * 16, 16,
                           p->group + 1, as, &f, p->pc);
    }
    const model_operand right = decode(m->descriptor_b, p->pc);
    model_operand_read(model_cta, model_cta->rank, index_of(w), &right, !m->n_major, 0, m->columns, p->group + 1, as,
                       &f, p->pc);
    if (f.kind)
        taint(p->into, &f, "multiplies", p->pc);
    w->pending_count++;
    if (model_random() >> 32 & 1)
        compute_until(w, w->pending_count);
}

/* wgmma.fence */
void model_wgmma_fence(warp *w)
{
    for (uint32_t i = 0; i < w->product_count; i++)
        w->products[i].modified = false;
}

/* wgmma.commit_group */
void model_wgmma_commit(warp *w)
{
    w->group++;
}

/* wgmma.wait_group: all but the last groups are complete; the lanes know what they have read. */
void model_wgmma_wait(warp *w, int first)
{
    const uint32_t pending = (uint32_t) * (const int *)w->arguments[0];
    if (w->group < pending || w->group - pending <= w->waited)
        return;
    w->waited = w->group - pending;
    uint32_t end = 0;
    while (end < w->pending_count && w->pending[end].group < w->waited)
        end++;
    compute_until(w, end);
    memmove(w->pending, w->pending + end, (w->pending_count - end) * sizeof *w->pending);
    w->pending_count -= end;
    w->done_count -= end;
    const int agent = model_cta->first_agent + (int)model_launch->dimensions.x + index_of(w);
    for (int lane = 0; lane < 32; lane++)
        model_cta->thread[first + lane].clock[agent] = w->waited;
}

void model_wgmma_end(warp *w)
{
    if (w->pending_count)
        model_report_end("%u wgmmas of warp %d are in flight when the CTA ends", w->pending_count, index_of(w));
    const warp *leader = &model_cta->warps[index_of(w) / 4 * 4];
    if (leader->issued != w->issued)
        model_report_end("warps %d and %d of a group execute %llu and %llu wgmmas", index_of(leader), index_of(w),
                         (unsigned long long)leader->issued, (unsigned long long)w->issued);
}

/* ---------------------------------------------------------------------------------------------------------- accesses
 */

bool model_wgmma_overwritten(warp *w, uint32_t group, const finding *f, void *pc)
{
    bool found = false;
    for (uint32_t i = 0; i < w->product_count; i++) {
        product *p = &w->products[i];
        if (!p->live || group < p->first || group > p->last)
            continue;
        found = true;
        if (p->used)
            return true;
        taint(p, f, "multiplies", pc);
    }
    return !found && !(w->unused[group / 8 % sizeof w->unused] >> group % 8 & 1);
}

void model_registers_access(warp *w, const void *at, size_t size, bool write, void *pc)
{
    const unsigned char *from = at;
    const int lane = model_now->index % 32;
    for (uint32_t i = 0; write && i < w->pending_count; i++) {
        const unsigned char *a = (const unsigned char *)w->pending[i].lane[lane].a;
        if (a && from < a + 16 && from + size > a)
            model_report(pc, "changes an operand of a wgmma that its thread has not waited for");
    }
    for (uint32_t i = 0; i < w->product_count; i++) {
        product *p = &w->products[i];
        const unsigned char *d = (const unsigned char *)p->d[lane];
        if (!p->live || from >= d + p->count * 4 || from + size <= d)
            continue;
        if (p->last >= w->waited) {
            char place[512];
            model_place(place, sizeof place, p->pc);
            model_report(pc, "%s accumulators of a wgmma that its thread has not waited for\n  from %s",
                         write ? "changes" : "reads", place);
        }
        if (!write && p->fault.kind)
            model_report_finding(&p->fault, p->what, p->fault_pc);
        p->used |= !write;
        p->modified |= write;
    }
}
