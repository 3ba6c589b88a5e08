/* symbols.c: what the loaded objects define. */

#ifndef RAMFOLD_SYMBOLS_H
#define RAMFOLD_SYMBOLS_H

#include <elf.h>
#include <link.h>
#include <stdint.h>

/* The tables of an object; null where it has none. */
struct object {
    const struct link_map *map;
    const char *name;
    const ElfW(Sym) *symbols;
    const char *names;
    const uint32_t *hash, *older_hash;
    const ElfW(Half) *versions;
    /* Those of data and those of calls; their bytes. */
    const ElfW(Rela) *relocations[2];
    size_t sizes[2];
};

struct object ramfold_object(const struct link_map *map);

/* The function of this name that the object defines, or null. */
const ElfW(Sym) *ramfold_symbol(const struct object *object, const char *name);

/* The functions that it defines, one after the other; the first one after null. */
const ElfW(Sym) *ramfold_next_symbol(const struct object *object, const ElfW(Sym) *before);

const struct link_map *ramfold_first_map(void);
int ramfold_is_this(const struct link_map *map);
int ramfold_is_libc(const struct object *object);

/* This library, and libc: without a map if they are not to be found. */
struct object ramfold_this(void);
struct object ramfold_libc(void);

/* next.c: the malloc of a library that the program is linked with is called in the place of ours from now on. */
void ramfold_pass_on(const struct object *next);

#endif
