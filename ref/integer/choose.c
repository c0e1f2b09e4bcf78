/* Which of the kernels run here. */
#include "ref/integer/integer.h"

#include <stdlib.h>

/* Whether this CPU has the instructions of kernels that were built. */
static bool runs(const struct integer_kernels *kernels) {
#if defined __x86_64__
    if (kernels == &integer_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512vnni");
    if (kernels == &integer_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return kernels->name != NULL;
}

const struct integer_kernels *integer_choose(struct error *err) {
    static const struct integer_kernels *const best_first[] = {&integer_avx512, &integer_avx2,
                                                               &integer_neon, &integer_plain};
    const char *asked = getenv("SAMEBITS_ISA");
    for (size_t i = 0; i < sizeof best_first / sizeof *best_first; i++) {
        const struct integer_kernels *k = best_first[i];
        if (k->name && runs(k) && (!asked || !strcmp(asked, k->name)))
            return k;
    }
    error_set(err,
              "SAMEBITS_ISA=%s: this CPU, or this build, has no such instructions; plain, avx2, "
              "avx512 and neon are known",
              asked);
    return NULL;
}
