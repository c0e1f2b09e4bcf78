/*
 * bench_attend - attention over paged caches in other layouts, of other types, with other masks and
 * scores, and the kernels after vLLM's: 32 query heads, 8 kv heads, dimension 128, pages of 16.
 * Medians of REPEATS replays of a CUDA graph; see paged_rotation.h. And how long the plan of a
 * batch takes on the host.
 *
 *     bench_attend            all of it
 *     bench_attend PART ...   of layouts, vllm, types, variants (their time as a multiple of
 * causal) and plan, those
 */
#include "tests/bench/paged_rotation.h"

#include <chrono>

/* Seconds of a call over the rotation's pool as that layout. few: kernels that take so long that
 * the caches of a few calls are measure enough. */
static double time_of(struct rotation *r, enum kv_order order,
                      const struct attention_variant *variant, bool few = false,
                      enum kv_type type = KV_BFP16) {
    struct kv_layout layout = kv_layout_of(order, false, r->n_pages, r->page_size, KV_HEADS, DIM);
    struct kv_views kv;
    struct error err;
    int burst = (int)r->plans.size() < 4 || few ? 4 : (int)r->plans.size();
    layout.type = type;
    check(!kv_views_of(&kv, &layout, r->kv.k, r->kv.v, r->kv.k_exponents, r->kv.v_exponents, &err),
          "a layout");
    return graph_seconds(burst, [&](int i) {
        dev->ops->attend(dev, r->y, r->q, &kv, r->plans[(size_t)i % r->plans.size()], variant, 0);
    });
}

static void layouts(int n, int length) {
    struct rotation r = start(std::vector<int>((size_t)n, length), 1, 16);
    struct attention_variant causal = attention_variant_causal();
    double nhd = time_of(&r, KV_NHD, &causal), hnd = time_of(&r, KV_HND, &causal);
    printf("%4d x %5d: NHD %7.1f us, HND %7.1f us: %.2f\n", n, length, nhd * 1e6, hnd * 1e6,
           hnd / nhd);
    end(&r);
}

/* The versions over vLLM's layout, and the best one over NHD. */
static void vllm(int n, int length) {
    struct rotation r = start(std::vector<int>((size_t)n, length), 1, 16);
    struct attention_variant causal = attention_variant_causal();
    printf("%4d x %5d:", n, length);
    for (int version : {1, 2, 3}) {
        use_version("attend", version);
        if (version > 1 || n <= 8) /* 1 needs patience */
            printf(" version %d %8.1f us,", version,
                   time_of(&r, KV_VLLM, &causal, version == 1) * 1e6);
        fflush(stdout);
    }
    use_version("attend", 4);
    printf(" NHD version 4 %7.1f us\n", time_of(&r, KV_NHD, &causal) * 1e6);
    use_version("attend", 0);
    end(&r);
}

static void variants(int n, int length) {
    float *heads = random_floats(HEADS);
    float *lse = (float *)device_bytes(sizeof(float) * HEADS * (size_t)n);
    struct attention_variant all[7];
    static const char *const names[] = {"causal", "window of 128", "window of 1024", "soft cap 30",
                                        "ALiBi",  "sinks",         "log of the sum"};
    for (struct attention_variant &v : all)
        v = attention_variant_causal();
    all[1].window_left = 127;
    all[2].window_left = 1023;
    all[3].soft_cap = 30;
    all[4].alibi_slopes = heads;
    all[5].sinks = heads;
    all[6].lse = lse;
    double causal = 0;
    for (int i = 0; i < 7; i++) {
        struct rotation r = start(std::vector<int>((size_t)n, length), 1, 16, &all[i]);
        double s = time_of(&r, KV_NHD, &all[i]);
        causal = i ? causal : s;
        printf("%4d x %5d: %-14s %7.1f us: %.2f\n", n, length, names[i], s * 1e6, s / causal);
        fflush(stdout);
        end(&r);
    }
}

/* Every type, NHD, for decoding and for prompts. The scales of fp8 are 1. */
static void types(int n, int length, int qo_len) {
    struct attention_variant causal = attention_variant_causal();
    double first = 0, seen = (double)qo_len * (length - (qo_len - 1) / 2.0) * n;
    for (int t = 0; t < N_KV_TYPES; t++) {
        enum kv_type type = (enum kv_type)t;
        struct rotation r =
            start(std::vector<int>((size_t)n, length), qo_len, 16, &causal, 0, type);
        double s = time_of(&r, KV_NHD, &causal, false, type);
        first = t ? first : s;
        printf("%4d x %5d, %4d tokens each: %-5s %9.1f us: %.2f of bfp16", n, length, qo_len,
               kv_type_name(type), s * 1e6, s / first);
        printf(qo_len > 1 ? ", %.0f TFLOP/s\n" : "\n", 4 * seen * HEADS * DIM / s / 1e12);
        if ((type == KV_E4M3 || type == KV_E5M2) && qo_len == 1) {
            /* All but those that are not finite: the others are below 2. */
            uint32_t any = type == KV_E4M3 ? 0xfefefefeu : 0xfbfbfbfbu;
            size_t words = r.slots * KV_HEADS * DIM / 2;
            fill_random<<<1024, 256>>>((uint32_t *)r.kv.k, words, any);
            cudaDeviceSynchronize();
            s = time_of(&r, KV_NHD, &causal, false, type);
            printf("%41s: keys of any size   %9.1f us: %.2f of bfp16\n", "", s * 1e6, s / first);
            fill_random<<<1024, 256>>>((uint32_t *)r.kv.v, words, any);
            cudaDeviceSynchronize();
            s = time_of(&r, KV_NHD, &causal, false, type);
            printf("%41s: values, too        %9.1f us: %.2f of bfp16\n", "", s * 1e6, s / first);
        }
        fflush(stdout);
        end(&r);
    }
}

/* Microseconds on the host for the plan of n sequences. */
static void plan_time(int n, int length) {
    struct rotation r = start(std::vector<int>((size_t)n, length), 1, 16);
    std::vector<int32_t> qo((size_t)n + 1), indptr((size_t)n + 1), last((size_t)n);
    std::vector<int32_t> pages((size_t)n * (size_t)((length + 15) / 16));
    for (size_t i = 0; i < pages.size(); i++)
        pages[i] = (int32_t)i;
    for (int i = 0; i < n; i++) { /* lengths of all sizes */
        int own = 1 + (int)((long)length * (i * 37 % n) / n);
        qo[(size_t)i + 1] = i + 1;
        indptr[(size_t)i + 1] = indptr[(size_t)i] + (own + 15) / 16;
        last[(size_t)i] = (own - 1) % 16 + 1;
    }
    struct paged_batch batch = {
        n, 16, (int)pages.size(), qo.data(), indptr.data(), pages.data(), last.data()};
    struct attention_shape shape = {HEADS, KV_HEADS, DIM, 0.08838834764831845, KV_BFP16};
    struct error err;
    std::vector<double> all;
    for (int i = 0; i < REPEATS; i++) {
        auto begin = std::chrono::steady_clock::now();
        check(!dev->ops->attention_plan(dev, r.plans[0], &batch, &shape, NULL, &err), "a plan");
        all.push_back(
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        cudaDeviceSynchronize();
    }
    std::sort(all.begin(), all.end());
    printf("the plan of %d sequences of 1 to %d positions: %.0f us on the host\n", n, length,
           all[all.size() / 2] * 1e6);
    end(&r);
}

/* Whether a part is wanted; its heading, then. */
static bool begins(int argc, char **argv, const char *part) {
    bool found = wanted(argc, argv, part);
    if (found)
        printf("\n%s\n", part);
    return found;
}

int main(int argc, char **argv) {
    check_parts(argc, argv, {"layouts", "vllm", "types", "variants", "plan"});
    open_gpu();
    bench_read();
    if (begins(argc, argv, "layouts")) {
        layouts(8, 4096);
        layouts(64, 4096);
    }
    if (begins(argc, argv, "vllm"))
        for (int n : {1, 8, 16, 64})
            vllm(n, 4096);
    if (begins(argc, argv, "types")) {
        types(64, 4096, 1);
        types(1, 4096, 4096);
    }
    if (begins(argc, argv, "variants"))
        variants(64, 8192);
    if (begins(argc, argv, "plan"))
        plan_time(256, 1024);
    return 0; /* the process ends; its device memory goes with it */
}
