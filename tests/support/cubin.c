/* SPDX-License-Identifier: MIT */
#include "support/cubin.h"

#include <elf.h>
#include <string.h>

/* Entries of .nv.info: format, attribute, 16 bits of value or size; format 4 is followed by that many bytes. */
enum { FORMAT_SIZED = 4, REGISTERS = 0x2f, FRAME = 0x11 };

enum { LOAD_LOCAL = 0x983, STORE_LOCAL = 0x387, HGMMA_SHARED = 0x9f0, HGMMA_REGISTERS = 0xdf0, HMMA = 0x23c };
/* Opcodes of tcgen05.mma, with A in shared memory and in tensor memory: by their numbers in a kernel. */
enum { UTCHMMA_SHARED = 0x5ea, UTCHMMA_TENSOR = 0x9ea };
/* FSETP, of a register with another one, a constant of the text and one of memory. */
enum { COMPARE = 0x20b, COMPARE_IMMEDIATE = 0x80b, COMPARE_CONSTANT = 0xa0b };

typedef struct image {
    const uint8_t *bytes;
    size_t size;
    uint64_t headers, count, names, names_size;
} image;

static bool within(const image *i, uint64_t offset, uint64_t size)
{
    return offset <= i->size && size <= i->size - offset;
}

static uint32_t word_at(const image *i, uint64_t offset)
{
    uint32_t word;
    memcpy(&word, i->bytes + offset, sizeof word);
    return word;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static const char *read_header(const void *bytes, size_t size, image *i)
{
    Elf64_Ehdr head;
    Elf64_Shdr names;
    *i = (image){.bytes = bytes, .size = size};
    if (size < sizeof head)
        return "it is too short";
    memcpy(&head, bytes, sizeof head);
    if (memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_machine != 190)
        return "it is no 64-bit ELF file of NVIDIA's";
    i->headers = head.e_shoff;
    i->count = head.e_shnum;
    if (head.e_shentsize != sizeof names || !within(i, i->headers, i->count * sizeof names) ||
        head.e_shstrndx >= i->count)
        return "its section headers are outside";
    memcpy(&names, i->bytes + i->headers + head.e_shstrndx * sizeof names, sizeof names);
    if (!within(i, names.sh_offset, names.sh_size) || !names.sh_size ||
        i->bytes[names.sh_offset + names.sh_size - 1] != '\0')
        return "its names are outside";
    i->names = names.sh_offset;
    i->names_size = names.sh_size;
    return NULL;
}

static const char *read_info(const image *i, const Elf64_Shdr *s, cubin_figures *f)
{
    const uint64_t end = s->sh_offset + s->sh_size;
    for (uint64_t at = s->sh_offset; at + 4 <= end;) {
        const uint32_t entry = word_at(i, at), value = entry >> 16;
        at += 4;
        if ((entry & 0xff) != FORMAT_SIZED)
            continue;
        if (value > end - at)
            return "an entry of .nv.info ends outside";
        const uint32_t attribute = entry >> 8 & 0xff;
        if (value >= 8 && attribute == REGISTERS)
            f->registers = larger(f->registers, word_at(i, at + 4));
        if (value >= 8 && attribute == FRAME)
            f->stack = larger(f->stack, word_at(i, at + 4));
        at += value;
    }
    return NULL;
}

static void read_text(const image *i, const Elf64_Shdr *s, cubin_figures *f)
{
    f->kernels++;
    for (uint64_t at = s->sh_offset; at + 16 <= s->sh_offset + s->sh_size; at += 16) {
        const uint32_t opcode = word_at(i, at) & 0xfff;
        f->spills += opcode == LOAD_LOCAL || opcode == STORE_LOCAL;
        f->wgmma += opcode == HGMMA_SHARED || opcode == HGMMA_REGISTERS;
        f->tcgen05 += opcode == UTCHMMA_SHARED || opcode == UTCHMMA_TENSOR;
        f->mma += opcode == HMMA;
        f->compares += opcode == COMPARE || opcode == COMPARE_IMMEDIATE || opcode == COMPARE_CONSTANT;
    }
}

const char *cubin_read(const void *bytes, size_t size, cubin_figures *figures)
{
    image i;
    *figures = (cubin_figures){0};
    const char *wrong = read_header(bytes, size, &i);
    for (uint64_t n = 0; !wrong && n < i.count; n++) {
        Elf64_Shdr s;
        memcpy(&s, i.bytes + i.headers + n * sizeof s, sizeof s);
        if (s.sh_name >= i.names_size || (s.sh_type != SHT_NOBITS && !within(&i, s.sh_offset, s.sh_size)))
            return "a section is outside";
        const char *name = (const char *)i.bytes + i.names + s.sh_name;
        static const char text[] = ".text.", shared[] = ".nv.shared.", reserved[] = ".nv.shared.reserved";
        if (!strcmp(name, ".nv.info"))
            wrong = read_info(&i, &s, figures);
        else if (!strncmp(name, text, sizeof text - 1))
            read_text(&i, &s, figures);
        else if (!strncmp(name, shared, sizeof shared - 1) && strncmp(name, reserved, sizeof reserved - 1) != 0)
            figures->shared = larger(figures->shared, (uint32_t)s.sh_size);
    }
    return wrong ? wrong : figures->kernels && figures->registers ? NULL : "it has no kernel";
}
