/* What the loaded objects define, read from their own tables.
 *
 * dlsym allocates and takes the dynamic linker's lock, and it finds what others.c has put into libc's table. Here nothing is
 * allocated, so malloc itself may ask; libc's own functions are found behind what stands in their place. The list of objects
 * is the dynamic linker's; those that are there when the program starts stay, in the order in which symbols are looked for.
 * Of several versions of a symbol the default one counts. */

#define _GNU_SOURCE
#include "symbols.h"

#include <stddef.h>
#include <string.h>

extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));

struct object ramfold_object(const struct link_map *map) {
    struct object object = {.map = map};
    const char *name = NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry && entry->d_tag != DT_NULL; entry++) {
        /* The dynamic linker has made these addresses, except in the kernel's own object. */
        ElfW(Addr) value = entry->d_un.d_ptr;
        const void *table = (const void *)(value < map->l_addr ? map->l_addr + value : value);
        switch (entry->d_tag) {
        case DT_SYMTAB: object.symbols = table; break;
        case DT_STRTAB: object.names = table; break;
        case DT_GNU_HASH: object.hash = table; break;
        case DT_HASH: object.older_hash = table; break;
        case DT_VERSYM: object.versions = table; break;
        case DT_RELA: object.relocations[0] = table; break;
        case DT_JMPREL: object.relocations[1] = table; break;
        case DT_RELASZ: object.sizes[0] = entry->d_un.d_val; break;
        case DT_PLTRELSZ: object.sizes[1] = entry->d_un.d_val; break;
        case DT_SONAME: name = (const char *)entry->d_un.d_val; break;
        }
    }
    if (name && object.names) object.name = object.names + (size_t)name;
    return object;
}

static int is_function(const struct object *object, uint32_t index) {
    const ElfW(Sym) *symbol = &object->symbols[index];
    int hidden = object->versions && object->versions[index] & 0x8000;
    return symbol->st_shndx != SHN_UNDEF && symbol->st_value && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && !hidden;
}

static int is_called(const struct object *object, uint32_t index, const char *name) {
    return is_function(object, index) && !strcmp(object->names + object->symbols[index].st_name, name);
}

/* The parts of a table of DT_GNU_HASH. */
struct hash {
    uint32_t buckets, first, words;
    const ElfW(Addr) *filter;
    const uint32_t *bucket, *chain;
};

static struct hash hash_of(const uint32_t *table) {
    struct hash hash = {table[0], table[1], table[2], (const void *)(table + 4), NULL, NULL};
    hash.bucket = (const uint32_t *)(hash.filter + hash.words);
    hash.chain = hash.bucket + hash.buckets;
    return hash;
}

static const ElfW(Sym) *find_by_hash(const struct object *object, const char *name) {
    enum { BITS = 8 * sizeof(ElfW(Addr)) };
    struct hash hash = hash_of(object->hash);
    uint32_t key = 5381;
    for (const char *c = name; *c; c++) key = key * 33 + (unsigned char)*c;
    ElfW(Addr) word = hash.filter[key / BITS & (hash.words - 1)];
    if (!hash.buckets || !(word >> key % BITS & word >> (key >> object->hash[3]) % BITS & 1)) return NULL;
    uint32_t index = hash.bucket[key % hash.buckets];
    if (index < hash.first) return NULL;
    for (;; index++) {
        uint32_t here = hash.chain[index - hash.first];
        if ((here | 1) == (key | 1) && is_called(object, index, name)) return &object->symbols[index];
        if (here & 1) return NULL;
    }
}

/* One more than the last index of a symbol that is defined. */
static uint32_t count(const struct object *object) {
    if (!object->hash) return object->older_hash ? object->older_hash[1] : 0;
    struct hash hash = hash_of(object->hash);
    uint32_t last = 0;
    for (uint32_t i = 0; i < hash.buckets; i++)
        if (hash.bucket[i] > last) last = hash.bucket[i];
    if (last < hash.first) return 0;
    while (!(hash.chain[last - hash.first] & 1)) last++;
    return last + 1;
}

const ElfW(Sym) *ramfold_symbol(const struct object *object, const char *name) {
    if (!object->symbols || !object->names) return NULL;
    if (object->hash) return find_by_hash(object, name);
    for (uint32_t index = 0; index < count(object); index++)
        if (is_called(object, index, name)) return &object->symbols[index];
    return NULL;
}

const ElfW(Sym) *ramfold_next_symbol(const struct object *object, const ElfW(Sym) *before) {
    uint32_t all = count(object);
    for (uint32_t index = before ? (uint32_t)(before - object->symbols) + 1 : 0; index < all; index++)
        if (is_function(object, index)) return &object->symbols[index];
    return NULL;
}

const struct link_map *ramfold_first_map(void) { return _r_debug.r_map; }

int ramfold_is_this(const struct link_map *map) { return map->l_ld == _DYNAMIC; }

int ramfold_is_libc(const struct object *object) { return object->name && !strcmp(object->name, "libc.so.6"); }

struct object ramfold_this(void) {
    const struct link_map *map = ramfold_first_map();
    while (map && !ramfold_is_this(map)) map = map->l_next;
    return map ? ramfold_object(map) : (struct object){0};
}

struct object ramfold_libc(void) {
    for (const struct link_map *map = ramfold_first_map(); map; map = map->l_next) {
        struct object object = ramfold_object(map);
        if (ramfold_is_libc(&object)) return object;
    }
    return (struct object){0};
}
