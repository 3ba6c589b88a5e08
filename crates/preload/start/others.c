/* Other allocators in the program, libc's first of all: each block goes back to who gave it.
 *
 * - Libc's own functions are looked for in its table once, before anybody's first block. Programs that wrap malloc call them as
 *   __libc_malloc: this library has these names too.
 * - An object that is opened with RTLD_DEEPBIND, a handle of libc's, and RTLD_NEXT all lead past this library, into libc's
 *   table of symbols. So before the program opens anything, or the engine comes, what this library replaces is led here in that
 *   table: whoever looks from then on finds what the program finds, before a constructor of his runs. Exceptions are functions
 *   that another library replaces too, between this one and libc: it looks for the next one itself, and would come here for ever.
 * - Where a library that the program is linked with has a malloc (jemalloc, tcmalloc), that is the program's, with all its further
 *   functions (mallocx), and this library passes the calls on to it (next.c). Its memory is managed as what it maps.
 *
 * Price: some microseconds and up to 80 KB of libc's table, in programs that open objects or take memory. Guarantee: there is
 * one thread when libc's table changes, or the threads that constructors have started, which see either function. */

#define _GNU_SOURCE
#include "start.h"
#include "symbols.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

struct ramfold_libcs ramfold_libcs;
int ramfold_own_malloc;
EXPORTED int ramfold_next_malloc;

/* What libc's table had. */
enum { MOST_LED = 192, PAGE = 4096 };
static struct {
    const char *name;
    void *original;
} led[MOST_LED];
static size_t led_count;

static void *address(const struct object *object, const ElfW(Sym) *symbol) {
    return symbol ? (void *)(object->map->l_addr + symbol->st_value) : NULL;
}

static void *original(const char *name) {
    for (size_t i = 0; i < led_count; i++)
        if (!strcmp(led[i].name, name)) return led[i].original;
    return NULL;
}

void *ramfold_in_libc(const char *name) {
    void *found = original(name);
    if (found) return found;
    struct object libc = ramfold_libc();
    return libc.map ? address(&libc, ramfold_symbol(&libc, name)) : NULL;
}

/* Where among the loaded objects the function is found first, behind this library or (`before`) in front of it. */
static struct object definer(const char *name, int before) {
    int behind = 0;
    for (const struct link_map *map = ramfold_first_map(); map; map = map->l_next) {
        if (ramfold_is_this(map)) {
            if (before) break;
            behind = 1;
        } else if (before || behind) {
            struct object object = ramfold_object(map);
            if (ramfold_symbol(&object, name)) return object;
        }
    }
    return (struct object){0};
}

EXPORTED void *ramfold_behind(const char *name) {
    struct object object = definer(name, 0);
    if (!object.map) return NULL;
    void *found = ramfold_is_libc(&object) ? original(name) : NULL;
    return found ? found : address(&object, ramfold_symbol(&object, name));
}

void *ramfold_in_front(const char *name) {
    struct object object = definer(name, 1);
    return object.map ? address(&object, ramfold_symbol(&object, name)) : NULL;
}

void ramfold_meet(void) {
    static int done;
    if (done) return;
    done = 1;
    if (ramfold_apart) return ramfold_leave_heap();
#define LIBCS(name) ramfold_libcs.name = ramfold_in_libc("__libc_" #name);
    LIBCS(malloc)
    LIBCS(calloc)
    LIBCS(realloc)
    LIBCS(free)
    LIBCS(memalign)
    LIBCS(valloc)
    LIBCS(pvalloc)
#undef LIBCS
    ramfold_own_malloc = ramfold_in_front("malloc") != NULL;
    struct object next = definer("malloc", 0);
    ramfold_next_malloc = next.map && !ramfold_is_libc(&next);
    if (ramfold_next_malloc) ramfold_pass_on(&next);
    ramfold_open_heap(ramfold_next_malloc);
    /* It may lie over libc's, and look for that. */
    if (ramfold_next_malloc) ramfold_lead_here();
}

/* Whether this library's function may stand in the place of libc's. */
static int may_lead(const struct object *libc, const char *name, const ElfW(Sym) *theirs) {
    return ramfold_libc_entry(name) || ramfold_behind(name) == address(libc, theirs);
}

static int protection;
static int keep_protection(struct dl_phdr_info *info, size_t size, void *table) {
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || (uintptr_t)table - info->dlpi_addr - part->p_vaddr >= part->p_memsz) continue;
        protection = (part->p_flags & PF_R ? PROT_READ : 0) | (part->p_flags & PF_W ? PROT_WRITE : 0) |
                     (part->p_flags & PF_X ? PROT_EXEC : 0);
        return 1;
    }
    return 0;
}

long ramfold_protect(uintptr_t from, uintptr_t to, int how) {
    from &= -(uintptr_t)PAGE;
    return ramfold_call(SYS_mprotect, (long)from, (long)(to - from), how, 0, 0, 0);
}

/* False if libc's table cannot be written. */
static int lead_here(void) {
    static struct {
        ElfW(Sym) *theirs;
        ElfW(Addr) value;
    } wanted[MOST_LED];
    size_t count = 0;
    struct object libc = ramfold_libc(), this = ramfold_this();
    if (!libc.map || !this.map || !dl_iterate_phdr(keep_protection, (void *)libc.symbols)) return 0;
    uintptr_t first = -1ul, last = 0;
    const ElfW(Sym) *ours = NULL;
    while (count < MOST_LED && (ours = ramfold_next_symbol(&this, ours))) {
        const char *name = this.names + ours->st_name;
        ElfW(Sym) *theirs = (ElfW(Sym) *)ramfold_symbol(&libc, name);
        if (!theirs || !may_lead(&libc, name, theirs)) continue;
        void *entry = ramfold_libc_entry(name);
        led[count].name = name;
        led[count].original = address(&libc, theirs);
        wanted[count].theirs = theirs;
        wanted[count++].value = (ElfW(Addr))(entry ? entry : address(&this, ours)) - libc.map->l_addr;
        if ((uintptr_t)theirs < first) first = (uintptr_t)theirs;
        if ((uintptr_t)(theirs + 1) > last) last = (uintptr_t)(theirs + 1);
    }
    if (!count || ramfold_protect(first, last, protection | PROT_WRITE)) return 0;
    led_count = count;
    atomic_thread_fence(memory_order_seq_cst);
    for (size_t i = 0; i < count; i++)
        __atomic_store_n(&wanted[i].theirs->st_value, wanted[i].value, __ATOMIC_RELEASE);
    ramfold_protect(first, last, protection);
    return 1;
}

void ramfold_lead_to(const char *name, void *function) {
    struct object libc = ramfold_libc();
    ElfW(Sym) *symbol = libc.map ? (ElfW(Sym) *)ramfold_symbol(&libc, name) : NULL;
    uintptr_t from = (uintptr_t)symbol;
    if (!symbol || !dl_iterate_phdr(keep_protection, (void *)libc.symbols)) return;
    if (ramfold_protect(from, from + sizeof *symbol, protection | PROT_WRITE)) return;
    __atomic_store_n(&symbol->st_value, (ElfW(Addr))function - libc.map->l_addr, __ATOMIC_RELEASE);
    ramfold_protect(from, from + sizeof *symbol, protection);
}

int ramfold_lead_here(void) {
    static int done, led_here;
    if (done) return led_here;
    done = 1;
    ramfold_meet();
    return led_here = lead_here();
}

/* dlopen and dlmopen: a jump, so that they see who calls. */
void *ramfold_slot_dlopen, *ramfold_slot_dlmopen;

void ramfold_before_dlmopen(long space, const char *path, int mode) {
    (void)space, (void)path;
    if (!ramfold_slot_dlopen) {
        ramfold_slot_dlmopen = ramfold_behind("dlmopen");
        ramfold_slot_dlopen = ramfold_behind("dlopen");
    }
    if (!ramfold_apart && !ramfold_lead_here() && mode & RTLD_DEEPBIND)
        ramfold_refuse("ramfold: memory cannot be held under the limit: RTLD_DEEPBIND leads past it, and libc cannot be changed\n");
}

void ramfold_before_dlopen(const char *path, int mode) { ramfold_before_dlmopen(LM_ID_BASE, path, mode); }

FUNCTION(globl, dlopen, JUMP_AFTER(ramfold_before_dlopen, ramfold_slot_dlopen))
FUNCTION(globl, dlmopen, JUMP_AFTER(ramfold_before_dlmopen, ramfold_slot_dlmopen))

static int is_sealed(struct dl_phdr_info *info, size_t size, void *word) {
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_GNU_RELRO && (uintptr_t)word - info->dlpi_addr - part->p_vaddr < part->p_memsz) return 1;
    }
    return 0;
}

int ramfold_put(void **word, void *function) {
    uintptr_t from = (uintptr_t)word;
    int sealed = dl_iterate_phdr(is_sealed, word);
    if (sealed && ramfold_protect(from, from + sizeof *word, PROT_READ | PROT_WRITE)) return 0;
    __atomic_store_n(word, function, __ATOMIC_RELEASE);
    if (sealed) ramfold_protect(from, from + sizeof *word, PROT_READ);
    return 1;
}

static int give(const struct object *object, const char *name, void *function) {
    int count = 0;
    for (int table = 0; table < 2; table++) {
        for (size_t i = 0; i < object->sizes[table] / sizeof(ElfW(Rela)); i++) {
            const ElfW(Rela) *relocation = &object->relocations[table][i];
            uint32_t index = ELF64_R_SYM(relocation->r_info);
            if (!index || relocation->r_addend || strcmp(object->names + object->symbols[index].st_name, name)) continue;
            if (!ramfold_put((void **)(object->map->l_addr + relocation->r_offset), function)) return 0;
            count++;
        }
    }
    return count;
}

/* In libc itself, the words that hold the address of the function of this name. (Before glibc 2.34 threads are in a library of
   their own.) */
EXPORTED int ramfold_give_libc(const char *name, void *function) {
    int count = 0;
    for (const struct link_map *map = ramfold_first_map(); map; map = map->l_next) {
        struct object object = ramfold_object(map);
        if (ramfold_is_libc(&object) || (object.name && !strcmp(object.name, "libpthread.so.0")))
            count += give(&object, name, function);
    }
    return count;
}
