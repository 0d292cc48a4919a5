/* SPDX-License-Identifier: MIT */
/*
 * Replaces function bodies in modules. A module is one stream of instructions in the order of SPIR-V's sections:
 * additions go to the end of their section, with ids above the module's bound. Types are the module's own, found and
 * never added, since non-aggregate types must be unique.
 */
#include "vulkan/emit.h"

/* C requires an external definition of the header's inline function; it has a name of ours. */
#define SPV_ENABLE_UTILITY_CODE
#define SpvHasResultAndType attune__spirv_result_and_type
#include <spirv/unified1/spirv.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

extern void SpvHasResultAndType(SpvOp opcode, bool *has_result, bool *has_type);

#define HEADER     5
#define MOST_BOUND (UINT32_C(1) << 20) /* ids of a module that we would have built */
#define PARAMETERS 9                   /* of a stub, at most */

/* The properties of an id. */
typedef struct id_info {
    const char *name;  /* OpName's, of functions */
    uint32_t function; /* the function whose body defines it; 0 = none */
    bool reached;      /* functions: called from the entry point */
} id_info;

typedef struct splicer {
    const uint32_t *words;
    size_t count;
    id_info *ids;
    uint32_t bound;
    attune__module module;
    uint32_t entry, stubs[ATTUNE__STUB_COUNT]; /* functions */
    attune__words bodies[ATTUNE__STUB_COUNT];
} splicer;

typedef struct instruction {
    const uint32_t *at;
    uint32_t opcode, length;
} instruction;

/* The instruction at *next, which moves past it. False at the end, and with *damaged set if the words run out. */
static bool step(const splicer *s, size_t *next, instruction *i, bool *damaged)
{
    if (*next >= s->count)
        return false;
    const uint32_t first = s->words[*next], length = first >> SpvWordCountShift;
    if (!length || length > s->count - *next) {
        *damaged = true;
        return false;
    }
    *i = (instruction){s->words + *next, first & SpvOpCodeMask, length};
    *next += length;
    return true;
}

/* The word that is the result's id, 0 = none. Only for instructions that glslang writes before and around functions. */
static uint32_t result_of(const instruction *i)
{
    bool has_result = false, has_type = false;
    SpvHasResultAndType((SpvOp)i->opcode, &has_result, &has_type);
    const uint32_t at = has_type ? 2 : 1;
    return has_result && i->length > at ? i->at[at] : 0;
}

/* "attune_mask(" of "attune_mask(i1;i1;i1;i1;vu2;" */
static bool is_called(const char *mangled, const char *name)
{
    const size_t length = strlen(name);
    return mangled && !strncmp(mangled, name, length) && mangled[length] == '(';
}

static void find_type(splicer *s, const instruction *i)
{
    attune__module *m = &s->module;
    if (i->opcode == SpvOpTypeBool && i->length == 2)
        m->type_bool = i->at[1];
    else if (i->opcode == SpvOpTypeInt && i->length == 4 && i->at[2] == 32 && i->at[3] == 1)
        m->type_int = i->at[1];
    else if (i->opcode == SpvOpTypeFloat && i->length >= 3 && i->at[2] == 32)
        m->type_float = i->at[1];
    else if (i->opcode == SpvOpTypeVoid && i->length == 2)
        m->type_void = i->at[1];
    else if (i->opcode == SpvOpTypeVector && i->length == 4 && i->at[2] == m->type_int && m->type_int && i->at[3] == 2)
        m->type_ivec2 = i->at[1];
    else if (i->opcode == SpvOpTypeVector && i->length == 4 && i->at[2] == m->type_float && m->type_float &&
             i->at[3] == 4)
        m->type_vec4 = i->at[1];
}

/* Whether an instruction has the words that are read of it below. */
static bool is_whole(const splicer *s, const instruction *i)
{
    switch (i->opcode) {
    case SpvOpFunction:
        return i->length == 5 && i->at[2] && i->at[2] < s->bound;
    case SpvOpFunctionCall:
        return i->length >= 4 && i->at[3] && i->at[3] < s->bound;
    case SpvOpFunctionParameter:
    case SpvOpDecorate:
    case SpvOpDecorateId:
        return i->length >= 3;
    default:
        return true;
    }
}

/* Records names, types, functions and the ids that they define. */
static attune_status survey(splicer *s)
{
    size_t next = HEADER;
    instruction i;
    bool damaged = false;
    uint32_t function = 0, type_uint = 0;
    while (step(s, &next, &i, &damaged)) {
        const uint32_t id = result_of(&i);
        /* Functions do not nest. */
        if (id >= s->bound || !is_whole(s, &i) || (i.opcode == SpvOpFunction && function) ||
            (i.opcode == SpvOpFunctionEnd && !function)) {
            damaged = true;
            break;
        }
        if (i.opcode == SpvOpName && i.length > 2 && i.at[1] < s->bound &&
            memchr(i.at + 2, 0, (size_t)(i.length - 2) * 4))
            s->ids[i.at[1]].name = (const char *)(i.at + 2);
        find_type(s, &i);
        if (i.opcode == SpvOpTypeInt && i.length == 4 && i.at[2] == 32 && i.at[3] == 0)
            type_uint = i.at[1];
        if (i.opcode == SpvOpTypeVector && i.length == 4 && i.at[2] == type_uint && type_uint && i.at[3] == 3)
            s->module.type_uvec3 = i.at[1];
        if (i.opcode == SpvOpEntryPoint && i.length > 2)
            s->entry = i.at[2];
        if (i.opcode == SpvOpFunction)
            function = id;
        if (id)
            s->ids[id].function = function;
        if (i.opcode == SpvOpFunctionEnd)
            function = 0;
    }
    return damaged || function ? ATTUNE_INTERNAL : ATTUNE_OK;
}

/* A kernel that computes capture gradients. */
static bool is_adding(const splicer *s)
{
    return s->stubs[ATTUNE__STUB_D_UNIFORM_ADD] || s->stubs[ATTUNE__STUB_D_ADD];
}

/* A kernel that skips tiles of keys. */
static bool has_bounds(const splicer *s)
{
    return s->stubs[ATTUNE__STUB_MASK_BOUNDS] != 0;
}

/* Whether the module has who calls a helper. */
static bool calls_helper(const splicer *s, uint32_t helper)
{
    if (helper >= ATTUNE__HELPER_SHORT_TANH)
        return false;
    return helper < ATTUNE__HELPER_SUM_1 || (helper < ATTUNE__HELPER_BOUND ? is_adding(s) : has_bounds(s));
}

static attune_status find_functions(splicer *s)
{
    static const char *const names[ATTUNE__HELPER_COUNT] = {
        "attune_mod_word",       "attune_mod_idiv",      "attune_mod_imod",    "attune_mod_fmod",
        "attune_mod_abs",        "attune_mod_floor",     "attune_mod_ceil",    "attune_mod_exp",
        "attune_mod_exp2",       "attune_mod_log",       "attune_mod_log2",    "attune_mod_sqrt",
        "attune_mod_rsqrt",      "attune_mod_tanh",      "attune_mod_sigmoid", "attune_mod_sin",
        "attune_mod_cos",        "attune_mod_pow",       "attune_mod_at_1",    "attune_mod_at_2",
        "attune_mod_at_3",       "attune_mod_at_4",      "attune_mod_i32",     "attune_mod_i64",
        "attune_mod_u8",         "attune_mod_bool",      "attune_mod_f32",     "attune_mod_f16",
        "attune_mod_bf16",       "attune_mod_sum_1",     "attune_mod_sum_2",   "attune_mod_sum_3",
        "attune_mod_sum_4",      "attune_mod_add",       "attune_mod_bound",   "attune_mod_bound_select",
        "attune_mod_short_tanh", "attune_mod_short_cap",
    };
    static const char *const stubs[ATTUNE__STUB_COUNT] = {"attune_score",   "attune_mask",      "attune_mask_bounds",
                                                          "attune_d_score", "attune_d_uniform", "attune_d_uniform_add",
                                                          "attune_d_add"};
    for (uint32_t id = 1; id < s->bound; id++) {
        const char *name = s->ids[id].name;
        if (s->ids[id].function != id)
            continue;
        for (uint32_t k = 0; k < ATTUNE__STUB_COUNT; k++)
            if (is_called(name, stubs[k]))
                s->stubs[k] = id;
        for (uint32_t h = 0; h < ATTUNE__HELPER_COUNT; h++)
            if (is_called(name, names[h]))
                s->module.helper[h] = id;
    }
    const attune__module *m = &s->module;
    bool all = s->stubs[ATTUNE__STUB_SCORE] && s->stubs[ATTUNE__STUB_MASK] && s->entry && s->entry < s->bound &&
               m->type_bool && m->type_int && m->type_float && m->type_uvec3;
    for (uint32_t h = 0; h < ATTUNE__HELPER_COUNT; h++)
        all = all && (m->helper[h] || !calls_helper(s, h));
    all = all && (!is_adding(s) || (m->type_void && m->type_vec4)) && (!has_bounds(s) || m->type_ivec2);
    return all ? ATTUNE_OK : ATTUNE_INTERNAL;
}

/* Emits the body of a stub, whose parameters follow its OpFunction. */
static attune_status emit(splicer *s, attune__stub_kind kind, const attune__mods *mods)
{
    static const uint32_t wanted[ATTUNE__STUB_COUNT] = {6, 5, 5, 6, 6, 4, 7};
    size_t next = HEADER;
    instruction i;
    bool damaged = false, inside = false;
    uint32_t parameters[PARAMETERS], count = 0;
    while (step(s, &next, &i, &damaged)) {
        if (i.opcode == SpvOpFunction)
            inside = i.length > 2 && i.at[2] == s->stubs[kind];
        if (inside && i.opcode == SpvOpFunctionParameter && count < PARAMETERS && i.length == 3)
            parameters[count++] = i.at[2];
    }
    const bool of_sequence = kind <= ATTUNE__STUB_MASK_BOUNDS && count == wanted[kind] + 3;
    if (count != wanted[kind] && !of_sequence)
        return ATTUNE_INTERNAL;
    attune__stub stub = {.kind = kind};
    const uint32_t *p = parameters;
    if (kind == ATTUNE__STUB_D_UNIFORM_ADD) {
        stub.gradients = p[0];
        stub.b = p[1];
        stub.h = p[2];
        stub.mod = p[3];
    } else {
        if (kind != ATTUNE__STUB_MASK && kind != ATTUNE__STUB_MASK_BOUNDS)
            stub.score = *p++;
        stub.b = p[0];
        stub.h = p[1];
        stub.q = p[2];
        stub.kv = p[3];
        stub.mod = p[4];
        stub.d = kind == ATTUNE__STUB_D_ADD ? p[5] : 0;
        if (of_sequence) {
            stub.q_len = p[5];
            stub.kv_len = p[6];
            stub.row = p[7];
        }
    }
    attune__mods_emit(&s->module, &stub, mods, &s->bodies[kind]);
    return s->bodies[kind].status;
}

static bool is_stub(const splicer *s, uint32_t function)
{
    for (uint32_t k = 0; k < ATTUNE__STUB_COUNT; k++)
        if (function && function == s->stubs[k])
            return true;
    return false;
}

static void reach_calls(splicer *s, const attune__words *body, bool *more)
{
    for (size_t at = 0; at < body->count; at += body->at[at] >> SpvWordCountShift)
        if ((body->at[at] & SpvOpCodeMask) == SpvOpFunctionCall && !s->ids[body->at[at + 3]].reached)
            *more = s->ids[body->at[at + 3]].reached = true;
}

/* Marks what the entry point calls, with the new bodies in place of the stubs'. A call of what is no function, as in a
 * module that was cut between two, is damage. */
static attune_status reach(splicer *s)
{
    bool more = true, damaged = false;
    s->ids[s->entry].reached = true;
    while (more) {
        more = false;
        size_t next = HEADER;
        instruction i;
        uint32_t function = 0;
        while (step(s, &next, &i, &damaged)) {
            if (i.opcode == SpvOpFunction)
                function = i.at[2];
            const bool stub = is_stub(s, function);
            if (i.opcode == SpvOpFunctionCall && i.length > 3 && i.at[3] < s->bound && !stub &&
                s->ids[function].reached && !s->ids[i.at[3]].reached)
                more = s->ids[i.at[3]].reached = true;
        }
        for (uint32_t k = 0; k < ATTUNE__STUB_COUNT; k++)
            if (s->stubs[k] && s->ids[s->stubs[k]].reached)
                reach_calls(s, &s->bodies[k], &more);
    }
    for (uint32_t id = 1; id < s->bound; id++)
        if (s->ids[id].reached && s->ids[id].function != id)
            return ATTUNE_INTERNAL;
    return ATTUNE_OK;
}

static bool is_kept(const splicer *s, uint32_t id)
{
    const uint32_t function = id < s->bound ? s->ids[id].function : 0;
    return !function || (s->ids[function].reached && !is_stub(s, function));
}

static bool is_debug(uint32_t opcode)
{
    return opcode == SpvOpName || opcode == SpvOpMemberName || opcode == SpvOpSource ||
           opcode == SpvOpSourceContinued || opcode == SpvOpSourceExtension || opcode == SpvOpString ||
           opcode == SpvOpLine || opcode == SpvOpNoLine || opcode == SpvOpModuleProcessed;
}

/* Decorations end where types begin. */
static bool is_declaration(uint32_t opcode)
{
    return (opcode >= SpvOpTypeVoid && opcode <= SpvOpTypeForwardPointer) || opcode == SpvOpConstantTrue ||
           opcode == SpvOpConstant || opcode == SpvOpVariable || opcode == SpvOpUndef;
}

static const attune__words *body_of(const splicer *s, uint32_t stub)
{
    uint32_t k = 0;
    while (s->stubs[k] != stub)
        k++;
    return &s->bodies[k];
}

/* The module again: everything that is still used, and the additions at the end of their sections. */
static void rebuild(const splicer *s, attune__words *out)
{
    size_t next = HEADER;
    instruction i;
    bool damaged = false, decorated = false, declared = false, dropped = false, replaced = false;
    attune__words_copy(out, s->words, HEADER);
    while (step(s, &next, &i, &damaged)) {
        if (is_debug(i.opcode))
            continue;
        if (!decorated && is_declaration(i.opcode)) {
            attune__words_copy(out, s->module.decorations.at, s->module.decorations.count);
            decorated = true;
        }
        if (i.opcode == SpvOpFunction) {
            if (!declared)
                attune__words_copy(out, s->module.constants.at, s->module.constants.count);
            declared = true;
            dropped = !s->ids[i.at[2]].reached;
            replaced = is_stub(s, i.at[2]);
            if (!dropped)
                attune__words_copy(out, i.at, i.length);
            if (!dropped && replaced) {
                /* Parameters follow in the stream; the body comes before the stub's OpFunctionEnd. */
                const attune__words *body = body_of(s, i.at[2]);
                while (step(s, &next, &i, &damaged) && i.opcode == SpvOpFunctionParameter)
                    attune__words_copy(out, i.at, i.length);
                attune__words_copy(out, body->at, body->count);
                while (i.opcode != SpvOpFunctionEnd && step(s, &next, &i, &damaged))
                    ;
                attune__words_copy(out, i.at, i.length);
            }
            continue;
        }
        if (dropped && declared)
            continue;
        if ((i.opcode == SpvOpDecorate || i.opcode == SpvOpDecorateId) && !is_kept(s, i.at[1]))
            continue;
        attune__words_copy(out, i.at, i.length);
    }
    if (out->status == ATTUNE_OK)
        out->at[3] = s->module.bound;
}

static attune_status splice(splicer *s, const attune__mods *mods, attune__words *out)
{
    ATTUNE__TRY(survey(s));
    ATTUNE__TRY(find_functions(s));
    for (uint32_t k = 0; k < ATTUNE__STUB_COUNT; k++)
        if (s->stubs[k])
            ATTUNE__TRY(emit(s, (attune__stub_kind)k, mods));
    ATTUNE__TRY(s->module.decorations.status);
    ATTUNE__TRY(s->module.constants.status);
    ATTUNE__TRY(reach(s));
    rebuild(s, out);
    return out->status;
}

attune_status attune__mods_splice(const attune_allocator *allocator, const uint32_t *words, size_t count,
                                  const attune__mods *mods, uint32_t **spliced, size_t *spliced_count)
{
    *spliced = NULL;
    if (count < HEADER || words[0] != SpvMagicNumber || !words[3] || words[3] > MOST_BOUND)
        return attune__fail(ATTUNE_INTERNAL, "a prebuilt kernel is no SPIR-V module of ours");
    const attune__words empty = {.allocator = allocator};
    splicer s = {.words = words, .count = count, .bound = words[3]};
    for (uint32_t k = 0; k < ATTUNE__STUB_COUNT; k++)
        s.bodies[k] = empty;
    s.module = (attune__module){.bound = s.bound, .decorations = empty, .constants = empty};
    attune__words out = empty;
    attune_status status = ATTUNE_OUT_OF_HOST_MEMORY;
    s.ids = attune__alloc(allocator, s.bound, sizeof *s.ids);
    if (s.ids)
        status = splice(&s, mods, &out);
    if (status == ATTUNE_INTERNAL)
        attune__fail(status, "a prebuilt kernel is damaged, or has no stubs for the caller's expressions");
    attune__free(allocator, s.ids);
    attune__free(allocator, s.module.decorations.at);
    attune__free(allocator, s.module.constants.at);
    for (uint32_t k = 0; k < ATTUNE__STUB_COUNT; k++)
        attune__free(allocator, s.bodies[k].at);
    if (status != ATTUNE_OK) {
        attune__free(allocator, out.at);
        return status;
    }
    *spliced = out.at;
    *spliced_count = out.count;
    return ATTUNE_OK;
}
