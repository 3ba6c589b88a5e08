/* Sanitizers: in a program that is linked with the library of one (gcc's -fsanitize=address and =thread, clang's with
 * -shared-libasan), or runs under valgrind, this library passes everything on, and the engine is never loaded.
 *
 * Such a library has a malloc of its own that takes memory past libc, so there is little to hold; ThreadSanitizer also wants
 * all memory in ranges of its own, and valgrind leaves no room for ramfold's; and the libraries must be first. AddressSanitizer looks whether it is, and ends the program if not: it
 * goes through the names of what is loaded, before any constructor, and passes over what has none. So this library gives its
 * name up. That is done by a function that the linker calls when it relocates this library: it may call nobody else's.
 *
 * What such a program starts is held as ever. A sanitizer within the executable (clang's usual one) needs nothing of this. */

#define _GNU_SOURCE
#include "start.h"
#include "symbols.h"

#include <link.h>

extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));

int ramfold_apart;

/* Whether the name of a library begins so, directories aside. */
static int is_called(const char *path, const char *name) {
    const char *last = path;
    for (const char *at = path; *at; at++)
        if (*at == '/') last = at + 1;
    while (*name && *last == *name) last++, name++;
    return !*name;
}

static int is_sanitizer(const char *path) {
    return is_called(path, "libasan.so") || is_called(path, "libtsan.so") || is_called(path, "libhwasan.so") ||
           is_called(path, "libclang_rt.asan") || is_called(path, "libclang_rt.tsan") || is_called(path, "libclang_rt.hwasan") ||
           is_called(path, "vgpreload_core");
}

static void nothing(void) {}

static void (*look(void))(void) {
    struct link_map *own = NULL;
    for (struct link_map *map = _r_debug.r_map; map; map = map->l_next) {
        if (map->l_ld == _DYNAMIC) own = map;
        if (map->l_name && is_sanitizer(map->l_name)) ramfold_apart = 1;
    }
    if (ramfold_apart && own) own->l_name = "";
    return nothing;
}

/* Its address is what the linker calls `look` for. */
static void looked(void) __attribute__((ifunc("look")));
void (*const ramfold_looked)(void) = looked;
