/*
 * Computes what ../../attention_paged.cu and ../../attend.cu do, for sequences of few tokens over a
 * long cache; gains the speed of memory, because each key and value is read once:
 *
 * - a block of 8 warps (fp8: 4, gpu/fast/plan/plan.h) works on up to 8 rows at once, a row group:
 *   tokens and query heads of one kv head, which share one read of the keys and values;
 * - the blocks' shares of all tiles are equal (gpu/fast/plan/shares.cu), whatever the lengths. A
 *   share is walked through without a break, over the ends of sequences, by the blocks of all kv
 *   heads at the same time, because keys of the same position lie side by side;
 * - keys and values come in chunks of 128 positions (4 warps: 64) through a ring in shared memory,
 *   as many on their way while one is used as a tile has chunks of values, so that the loads never
 *   wait for the softmax between them;
 * - products are made by int8 tensor cores on digits: the 16 rows of an mma are the high digits of
 *   8 rows and their low ones. The cache's mantissas are int16: their two bytes are the digits
 *   already, high signed and low unsigned. For the other operand, which lies in registers, both are
 *   signed.
 *
 * Per tile of 256 positions:
 *
 *     2 x   keys of 128 positions: each warp takes 16, its scores stay in registers
 *     softmax: all warps, each of its own scores; the snapped weights go to shared memory as digits
 *     2 x   values of 128 positions: each warp takes an eighth of the dimensions
 *     merge into the running result, which stays in registers
 *
 * A row group that several blocks share is merged by a kernel of its own
 * (gpu/fast/decode/merge.cu). gpu/fast/decode/kernel.h has the kernel, gpu/fast/decode/decode.h the
 * sizes, loads.h the loads, tile.h and softmax.h the arithmetic. The mantissas of bfp8 are single
 * digits; caches of floats: gpu/fast/decode/decode_floats.cu.
 *
 * Keys that are shared by query heads: "multi-query attention", Shazeer, 2019; the split over the
 * context: Dao et al., "Flash-Decoding", 2023; equal shares of all work: "Stream-K", Osama et al.,
 * 2023.
 */
#include "gpu/fast/decode/kernel.h"

void gpu_attention_decode(struct gpu_device *gpu, const struct attention_arguments *a,
                          const struct decode_cache *cache, const struct attention_variant *variant,
                          const struct attention_plan *plan) {
    if (!kv_type_has_exponents(cache->type))
        return gpu_attention_decode_floats(gpu, a, cache, variant, plan);
    if (decode_has_few(cache, variant))
        return gpu_attention_decode_variants(gpu, a, cache, variant, plan);
    switch (decode_dim(a->head_dim, false)) {
    case 32:
        return launch<32, KV_BFP16, false>(gpu, a, cache, variant, plan);
    case 64:
        return launch<64, KV_BFP16, false>(gpu, a, cache, variant, plan);
    case 96:
        return launch<96, KV_BFP16, false>(gpu, a, cache, variant, plan);
    case 128:
        return launch<128, KV_BFP16, false>(gpu, a, cache, variant, plan);
    case 192:
        return launch<192, KV_BFP16, false>(gpu, a, cache, variant, plan);
    default:
        return launch<256, KV_BFP16, false>(gpu, a, cache, variant, plan);
    }
}

template <int DIM> static int shared_bytes(void) {
    return decode_sizes<DIM, KV_BFP16>::SHARED_BYTES +
           (int)(sizeof(struct row_states) + 3 * sizeof(struct tile_cursor));
}

int gpu_attention_decode_bytes(int head_dim, bool variant) {
    switch (decode_dim(head_dim, variant)) {
    case 32:
        return shared_bytes<32>();
    case 64:
        return shared_bytes<64>();
    case 96:
        return shared_bytes<96>();
    case 128:
        return shared_bytes<128>();
    case 192:
        return shared_bytes<192>();
    default:
        return shared_bytes<256>();
    }
}
