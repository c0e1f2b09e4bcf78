/*
 * programs - all test programs in one, which is linked once. build/release/tests/test_ops and the
 * others are links to it: the name that it is called by says which one runs. Each has its main in
 * a file of its own, compiled with -Dmain=main_of_NAME; PROGRAMS is the list, X(NAME) for each.
 */
#include <stdio.h>
#include <string.h>

/* The sanitizer's own allocator stops the program, unless it is set up otherwise, where malloc
 * returns NULL. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}

#define X(name) int main_of_##name(int argc, char **argv);
PROGRAMS
#undef X

static const struct {
    const char *name;
    int (*main)(int argc, char **argv);
} programs[] = {
#define X(name) {#name, main_of_##name},
    PROGRAMS
#undef X
};

int main(int argc, char **argv) {
    const char *slash = strrchr(argv[0], '/'), *name = slash ? slash + 1 : argv[0];
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        if (!strcmp(name, programs[i].name))
            return programs[i].main(argc, argv);
    fprintf(stderr, "%s: there is no test program of this name\n", argv[0]);
    return 2;
}
