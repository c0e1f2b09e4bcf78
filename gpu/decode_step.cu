/*
 * decode_step: a whole decoding pass as one kernel, from token ids to logits.
 *
 * With few sequences, each of the hundred ops of a pass takes some two microseconds, most of which
 * is the way from one kernel to the next. Here the blocks of a cluster stay, and wait for each
 * other's bytes where a kernel would end; what they tell each other never leaves shared memory.
 * Only weights and the KV cache come from memory, and both are asked for before they are needed.
 * (One kernel for a whole model: Spector et al., "Look Ma, No Bubbles! Designing a Low-Latency
 * Megakernel for Llama-1B", 2025.)
 *
 * What is computed, and the faults, are those of the ops in model/forward.c.
 *
 * 1  leaves the pass to the other ops
 * 2  the kernel, where it applies: compute capability 9.0, bfp16, a model that is small enough for
 *    its activations to fit in shared memory, 32, 64 or 128 dimensions a head
 *
 * The choice (version 0) is 2 where it pays: weights that stay in the L2 cache, few and short
 * sequences (measured: tests/bench/README.md). And 1 if a version of another op was asked for,
 * which this would leave out.
 */
extern "C" {
#include "model/forward.h"
}

#include "gpu/decode_step_attention.h"
#include "gpu/decode_step_linear.h"

#include <limits.h>
#include <stdlib.h>

/* What it pays for (tests/bench/README.md): few sequences of this length, or more that are short.
 */
enum { FEW_ROWS = 16, FEW_POSITIONS = 1280, MOST_ROWS = 64, MOST_POSITIONS = 320 };

/* ---- rows --------------------------------------------------------------------------------------
 *
 * Each of a row's warps works out all of its norm or its exponent for itself, which needs no
 * barrier, and writes its part of the result.
 */

/* Leaves four neighbours, from column `at` of a row on, as digits. */
static __device__ __forceinline__ void put_digits(const struct step *s, int row, int at, float4 v,
                                                  float scale) {
    uint2 m = mantissas_of(v, scale);
    int to = row * s->at.stride + at;
    *(uint32_t *)(step_memory() + s->at.high + to) = __byte_perm(m.x, m.y, 0x7531);
    *(uint32_t *)(step_memory() + s->at.low + to) = __byte_perm(m.x, m.y, 0x6420);
}

/* The scale of this warp's row, whose largest magnitude is given; 0 if it cannot be snapped, which
 * is a fault. */
static __device__ __forceinline__ float scale_of_row(const struct step *s, uint32_t largest,
                                                     int site) {
    int e = num_row_exponent(largest);
    bool bad = e > BFP_MAX_EXPONENT;
    e = bad ? BFP_MIN_EXPONENT : e;
    bool writes = s->lane == 0 && s->part == 0;
    if (writes)
        step_shared()->exponents[s->row] = e;
    if (writes && bad)
        gpu_fault(s->a->fault, site, s->first_row + s->row);
    return bad ? 0 : num_pow2f(15 - e);
}

static __device__ __forceinline__ void swap_places(int *a, int *b) {
    int was = *a;
    *a = *b;
    *b = was;
}

static __device__ __forceinline__ float *gains_of(const struct step *s, int layer) {
    return step_floats(s->at.gains) + layer % 2 * step_gains(s->a);
}

/* Four zeros where a row that cannot be snapped has something else. */
static __device__ __forceinline__ float4 snappable(float4 v, float scale) {
    return scale > 0 ? v : make_float4(0, 0, 0, 0);
}

/* x += what came in (if `add`), and the digits of the norm of that. Rows of up to 128 * VECTORS. */
template <int VECTORS>
static __device__ __forceinline__ void norm_rows(const struct step *s, const float *gain, bool add,
                                                 int site_x, int site_y) {
    int hidden = s->a->hidden;
    if (s->row >= s->n_rows || s->part >= VECTORS)
        return;
    const float4 *x = (const float4 *)(step_floats(s->at.x) + s->row * hidden);
    const float4 *branch = add ? (const float4 *)step_input(s, s->row) : x;
    float4 *sum = (float4 *)(step_floats(s->at.next_x) + s->row * hidden);
    /* No branches but at the ends: between them, an instruction waits for the one before it. */
    float4 v[VECTORS];
    const float4 zero = make_float4(0, 0, 0, 0);
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        int j = min(s->lane + 32 * i, hidden / 4 - 1);
        float4 a = x[j], b = branch[j];
        b = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
        v[i] = s->lane + 32 * i < hidden / 4 ? add ? b : a : zero;
    }
    UNROLL
    for (int i = 0; i < VECTORS; i++)
        if (s->lane + 32 * i < hidden / 4 && (i & (s->n_parts - 1)) == s->part)
            sum[s->lane + 32 * i] = v[i];
    int token = s->first_row + s->row;
    float r = factor_of_row<1>(v, s->lane, hidden, s->a->eps, site_x, token, s->a->fault);
    uint32_t largest = 0;
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        int j = min(s->lane + 32 * i, hidden / 4 - 1);
        v[i] = normed(v[i], r, ((const float4 *)gain)[j]);
        v[i] = s->lane + 32 * i < hidden / 4 ? v[i] : zero;
        largest = max(largest, largest_of(v[i]));
    }
    float scale = scale_of_row(s, warp_max(largest), site_y);
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        int j = s->lane + 32 * i;
        if (j < hidden / 4 && (i & (s->n_parts - 1)) == s->part)
            put_digits(s, s->row, 4 * j, snappable(v[i], scale), scale);
    }
}

static __device__ __forceinline__ void norm_input(struct step *s, const float *gain, bool add,
                                                  int site_x, int site_y) {
    if (s->a->hidden <= 256)
        norm_rows<2>(s, gain, add, site_x, site_y);
    else
        norm_rows<STEP_MOST_HIDDEN / 128>(s, gain, add, site_x, site_y);
    swap_places(&s->at.x, &s->at.next_x);
}

/* The digits of what came in, rows of n, whose parts have told their largest. */
static __device__ __forceinline__ void snap_input(const struct step *s, int n, int n_largest,
                                                  int site) {
    if (s->row < s->n_rows && s->part * 32 < n / 4) {
        const float *row = step_input(s, s->row);
        uint32_t largest = 0;
        UNROLL_1
        for (int i = s->lane; i < n_largest; i += 32)
            largest = max(largest, num_bits(row[s->at.largest + i]));
        float scale = scale_of_row(s, warp_max(largest), site);
        UNROLL_1
        for (int i = s->part * 32 + s->lane; i < n / 4; i += s->n_parts * 32)
            put_digits(s, s->row, 4 * i, snappable(((const float4 *)row)[i], scale), scale);
    }
}

/* ---- the kernel --------------------------------------------------------------------------------
 */

/* Starts copying the gains of layer i, in the background: a warp for each of them, the last ones,
 * which have the least to do then. */
static __device__ __forceinline__ void copy_gains(const struct step *s, int i) {
    const struct step_arguments *a = s->a;
    int which = s->warp - (STEP_WARPS - 4);
    if (which >= 0) {
        const float *from = step_layer_of(s, i)->gains[which];
        float *to = gains_of(s, i) +
                    (which < 2 ? which * a->hidden : 2 * a->hidden + (which - 2) * a->head_dim);
        int n = which < 2 ? a->hidden : a->head_dim;
        UNROLL_1
        for (int k = s->lane * 4; k < n && from; k += 128)
            cp_async_16(to + k, from + k);
    }
    cp_async_commit();
}

/* The embeddings of the rows' tokens, their angles, and zeros for digits behind the end of rows. */
static __device__ void begin_rows(const struct step *s) {
    const struct step_arguments *a = s->a;
    int thread = (int)threadIdx.x, half = a->head_dim / 2, padded = gpu_padded(a->hidden);
    for (int i = thread; i < s->n_rows * a->hidden; i += STEP_THREADS) {
        int token = s->batch[s->first_row + i / a->hidden];
        const int8_t *high = a->embedding + (size_t)token * (size_t)padded + i % a->hidden;
        int q = 256 * high[0] + high[(size_t)a->vocab * (size_t)padded];
        step_floats(s->at.x)[i] = (float)(q * num_pow2(a->embedding_exponents[token] - 15));
    }
    for (int i = thread; i < s->n_rows * half; i += STEP_THREADS) {
        size_t at = (size_t)s->batch[a->n_rows + s->first_row + i / half] * (size_t)half;
        step_floats(s->at.cos)[i] = a->rope_cos[at + (size_t)(i % half)];
        step_floats(s->at.sin)[i] = a->rope_sin[at + (size_t)(i % half)];
    }
    for (int i = thread; i < s->n_rows; i += STEP_THREADS) {
        step_shared()->positions[i] = s->batch[a->n_rows + s->first_row + i];
        step_shared()->first_pages[i] = s->batch[2 * a->n_rows + s->first_row + i];
    }
    for (int i = thread; i < s->n_rows * s->at.stride / 4; i += STEP_THREADS)
        ((uint32_t *)(step_memory() + s->at.high))[i] =
            ((uint32_t *)(step_memory() + s->at.low))[i] = 0;
}

/* The kind of linear layer number i of the pass: four of each layer, then the output matrix. */
static __device__ __forceinline__ const struct step_linear *linear_of(const struct step *s, int i) {
    return &step_shared()->linears[i < 4 * s->a->n_layers ? i % 4 : (int)STEP_LOGITS];
}

/* Makes the digits that linear layer i multiplies. (There is one place for each kind: what is there
 * twice takes twice the room in the cache for instructions.) */
static __device__ __forceinline__ void prepare_input(struct step *s, int i) {
    const struct step_arguments *a = s->a;
    int layer = i / 4, site = layer * N_TENSORS;
    if (i % 2) {
        bool down = i % 4 == 3;
        snap_input(s, down ? a->ffn : a->n_heads * a->head_dim, down ? s->n_blocks : a->n_heads,
                   site + (down ? TENSOR_ACTIVATION : TENSOR_ATTENTION));
        return;
    }
    bool ffn = i % 4 == 2, final = layer == a->n_layers;
    norm_input(s, gains_of(s, layer) + (ffn ? a->hidden : 0), i > 0,
               site + (ffn     ? TENSOR_MIDDLE
                       : final ? TENSOR_RESIDUAL
                               : TENSOR_EMBEDDING),
               site + (ffn     ? TENSOR_FFN_NORM
                       : final ? TENSOR_FINAL_NORM
                               : TENSOR_ATTENTION_NORM));
}

/* One loop over all linear layers, not one over layers: so the code of a linear layer is there
 * once, and stays in the cache for instructions. */
template <int DIM> static __device__ __forceinline__ void run_layers(struct step *s) {
    const struct step_arguments *a = s->a;
    int last = 4 * a->n_layers;
    struct step_tile<DIM> tile = {};
    struct step_tile_rows<DIM> rows;
    fetch(s, linear_of(s, 0), 0, 0);
    if (step_has_head(s, 0)) {
        struct step_head h = step_head_of(s, 0);
        find_rows(&rows, s, &h, 0);
    }
    for (int i = 0;; i++) {
        const struct step_linear *w = linear_of(s, i);
        int layer = i / 4;
        prepare_input(s, i);
        if (i % 4 == 0 && i < last && step_has_head(s, 0))
            load_tile(&tile, &rows, &step_layer_of(s, layer)->kv);
        if (i % 4 == 3)
            cp_async_wait<0>(); /* the next gains */
        __syncthreads();
        multiply_rows(s, w, layer);
        if (i == last)
            break;
        fetch(s, linear_of(s, i + 1), (i + 1) / 4, 0);
        if (i % 4 == 0)
            copy_gains(s, layer + 1);
        step_meet(s, s->n_rows * (w->n + (w->gated ? s->n_blocks : 0)));
        if (i % 4 == 0) {
            attend_rows(s, step_layer_of(s, layer), &tile, gains_of(s, layer) + 2 * a->hidden,
                        layer * N_TENSORS);
            step_meet(s, s->n_rows * a->n_heads * (DIM + 1) +
                             max(s->n_blocks - s->n_rows * a->n_heads, 0));
        }
    }
}

/* What this block has of a kind of linear layer. */
static __device__ __forceinline__ void begin_linear(const struct step *s, enum step_kind kind) {
    struct step_linear w = step_linear_of(s->a, kind);
    int tiles = step_tiles(&w);
    w.first_tile = (int)((long long)tiles * s->rank / s->n_blocks);
    w.n_tiles = (int)((long long)tiles * (s->rank + 1) / s->n_blocks) - w.first_tile;
    w.packed = s->a->packed + (kind == STEP_LOGITS ? 0 : step_packed_offset(s->a, kind)) +
               (size_t)w.first_tile * (size_t)step_tile_bytes(w.steps);
    step_shared()->linears[kind] = w;
}

/* Where this thread is. */
static __device__ __forceinline__ void begin_thread(struct step *s,
                                                    const struct step_arguments *a) {
    s->a = a;
    s->at = step_sizes_of(a);
    s->rank = cluster_rank();
    s->n_blocks = cluster_size();
    s->first_row = (int)blockIdx.x / s->n_blocks * a->rows_per_cluster;
    s->n_rows = min(a->rows_per_cluster, a->n_rows - s->first_row);
    s->warp = (int)threadIdx.x / 32;
    s->lane = (int)threadIdx.x % 32;
    s->n_parts = STEP_WARPS;
    while (s->n_parts * s->n_rows > STEP_WARPS)
        s->n_parts /= 2;
    s->row = s->warp / s->n_parts;
    s->part = s->warp % s->n_parts;
}

template <int DIM>
__global__ static void __launch_bounds__(STEP_THREADS) decode_step_2(struct step_arguments a) {
    if (!compiles_clusters)
        return;
    struct step s = {};
    begin_thread(&s, &a);
    run_in_turn();
    const uint32_t *from = (const uint32_t *)a.layers;
    int words = (a.n_layers + 1) * (int)(sizeof *a.layers / 4);
    for (int i = (int)threadIdx.x; i < words; i += STEP_THREADS)
        ((uint32_t *)(step_memory() + s.at.layers))[i] = from[i];
    if (threadIdx.x < N_STEP_LINEARS)
        begin_linear(&s, (enum step_kind)threadIdx.x);
    if (threadIdx.x == 0) {
        bulk_barrier_start(&step_shared()->barrier);
        for (int i = 0; i < 2; i++)
            peer_barrier_start(&step_shared()->came[i]);
    }
    for (int i = (int)threadIdx.x; i < STEP_NUMBERS && !a.batch; i += STEP_THREADS)
        step_shared()->numbers[i] = a.numbers[i];
    s.batch = a.batch ? a.batch : step_shared()->numbers;
    s.pages = s.batch + 3 * a.n_rows + 1;
    __syncthreads();
    begin_rows(&s);
    __syncthreads();
    copy_gains(&s, 0);
    cp_async_wait<0>();
    cluster_sync(); /* all blocks have begun */
    run_layers<DIM>(&s);
}

/* ---- the launch --------------------------------------------------------------------------------
 */

typedef void (*step_kernel)(struct step_arguments);

static step_kernel kernel_of(int head_dim) {
    switch (head_dim) {
    case 32:
        return decode_step_2<32>;
    case 64:
        return decode_step_2<64>;
    case 128:
        return decode_step_2<128>;
    default:
        return NULL;
    }
}

static struct step_layer layer_of(const struct layer_weights *w, const struct kv_layer *kv) {
    return {{w->attention_norm, w->ffn_norm, w->q_norm, w->k_norm},
            {w->q_bias, w->k_bias, w->v_bias, w->o_bias, w->gate_bias, w->up_bias, w->down_bias},
            *kv};
}

/* The digits of all weights of a pass. */
static size_t weight_bytes(const struct model *model) {
    const struct model_config *c = &model->config;
    size_t hidden = (size_t)c->hidden, dim = (size_t)c->head_dim;
    size_t heads = (size_t)(2 * c->n_heads + 2 * c->n_kv_heads) * dim;
    size_t layer = hidden * (heads + 3 * (size_t)c->ffn);
    return 2 * ((size_t)c->n_layers * layer + hidden * (size_t)c->vocab_size);
}

/* What the kernel is told, but for where its arrays are. */
static struct step_arguments arguments_of(const struct gpu_device *gpu, const struct model *model,
                                          const struct paged_batch *pages) {
    const struct model_config *c = &model->config;
    struct step_arguments a = {};
    a.embedding = (const int8_t *)model->embedding.mantissas;
    a.embedding_exponents = model->embedding.exponents;
    a.rope_cos = model->rope_cos;
    a.rope_sin = model->rope_sin;
    a.n_layers = c->n_layers;
    a.hidden = c->hidden;
    a.n_heads = c->n_heads;
    a.n_kv_heads = c->n_kv_heads;
    a.head_dim = c->head_dim;
    a.ffn = c->ffn;
    a.vocab = c->vocab_size;
    while (a.page_bits < 30 && 1 << a.page_bits < pages->page_size)
        a.page_bits++;
    a.heads_inverse = step_inverse(c->n_heads);
    a.group_inverse = step_inverse(c->n_heads / c->n_kv_heads);
    a.n_rows = pages->n_sequences;
    a.eps = c->rms_eps;
    a.scale = 1.0 / sqrt(c->head_dim);
    a.fault = gpu->fault;
    a.layer_bytes = step_packed_offset(&a, STEP_LOGITS);
    a.has_biases = c->qkv_bias || c->o_bias || c->mlp_bias;
    return a;
}

/* The shared memory of a block with so many rows. */
static int bytes_for(struct step_arguments *a, int rows) {
    a->rows_per_cluster = rows;
    return step_sizes_of(a).bytes;
}

/* Whether the kernel can run the model over this cache. */
static bool can_run(const struct gpu_device *gpu, struct step_arguments *a,
                    const struct paged_batch *pages) {
    int64_t rows = (int64_t)pages->n_pages * pages->page_size * a->n_kv_heads;
    return gpu->has_wgmma && kernel_of(a->head_dim) && a->n_heads <= STEP_MOST_HEADS &&
           a->hidden <= STEP_MOST_HIDDEN && a->hidden % 4 == 0 && a->ffn % 4 == 0 &&
           step_stride(a) / 64 <= STEP_UNITS && rows < UINT32_MAX &&
           1 << a->page_bits == pages->page_size && bytes_for(a, 1) <= gpu->most_shared;
}

/* Whether it should be chosen: see the head of this file. */
static bool pays(const struct gpu_device *gpu, const struct model *model,
                 const struct paged_batch *pages) {
    int longest = 0;
    for (int i = 0; i < N_GPU_KERNELS; i++)
        if (gpu->version[i])
            return false;
    for (int i = 0; i < pages->n_sequences; i++)
        longest = max(longest, paged_batch_kv_len(pages, i));
    int n = pages->n_sequences, most = n <= FEW_ROWS ? FEW_POSITIONS : MOST_POSITIONS;
    return weight_bytes(model) <= (size_t)gpu->cache_bytes && n <= MOST_ROWS && longest <= most;
}

/* Every block of a cluster has a part in every layer: so nobody can be two stages ahead of another,
 * whose memory would still be in use. */
static int most_blocks(const struct step_arguments *a) {
    int least = MOST_CLUSTER_BLOCKS;
    for (int kind = STEP_QKV; kind < STEP_LOGITS; kind++) {
        struct step_linear w = step_linear_of(a, (enum step_kind)kind);
        least = min(least, step_tiles(&w));
    }
    return least;
}

/* How many clusters of each size the GPU runs at once, of blocks with so much shared memory. Asked
 * once. Returns false when the device has failed. */
static bool count_clusters(struct gpu_device *gpu, int head_dim, int bytes) {
    if (gpu->step.head_dim == head_dim && gpu->step.bytes == bytes)
        return true;
    for (int i = 0; i < N_CLUSTER_SIZES; i++) {
        gpu->step.clusters[i].n_blocks = MOST_CLUSTER_BLOCKS >> i;
        if (!gpu_ok(gpu,
                    cluster_prepare(kernel_of(head_dim), &gpu->step.clusters[i].n_blocks,
                                    STEP_THREADS, bytes, &gpu->step.clusters[i].at_once),
                    "decode_step's clusters"))
            return false;
    }
    gpu->step.head_dim = head_dim;
    gpu->step.bytes = bytes;
    return true;
}

/* Clusters of how many blocks, and how many rows each: of many blocks, if the GPU runs as many of
 * them at once as that takes. Returns the blocks; 0: the kernel does not run here, or the device
 * has failed. */
static int choose_clusters(struct gpu_device *gpu, struct step_arguments *a) {
    int most_rows = STEP_ROWS, capacity = 0, n_blocks = 0;
    while (bytes_for(a, most_rows) > gpu->most_shared)
        most_rows--;
    if (!count_clusters(gpu, a->head_dim, bytes_for(a, most_rows)))
        return 0;
    for (int i = 0; i < N_CLUSTER_SIZES && capacity < a->n_rows; i++) {
        int blocks = gpu->step.clusters[i].n_blocks, at_once = gpu->step.clusters[i].at_once;
        if (blocks > most_blocks(a) || at_once * most_rows <= capacity)
            continue;
        capacity = at_once * most_rows;
        n_blocks = blocks;
        a->rows_per_cluster = min(most_rows, (a->n_rows + at_once - 1) / at_once);
    }
    return n_blocks;
}

/* ---- the op ------------------------------------------------------------------------------------
 */

/* Tells the device of the layers, unless it has been told the same before. */
static void upload_layers(struct gpu_device *gpu, struct step_arguments *a,
                          const struct model *model, const struct kv_layer *kv) {
    size_t bytes = sizeof *a->layers * ((size_t)a->n_layers + 1);
    struct step_layer *layers = (struct step_layer *)calloc(1, bytes);
    void *device = gpu_scratch(gpu, GPU_SCRATCH_LAYERS, bytes, "decode_step");
    if (!layers)
        gpu_failed(gpu, "decode_step", "out of memory");
    if (!gpu->failed) {
        for (int i = 0; i < a->n_layers; i++)
            layers[i] = layer_of(&model->layers[i], &kv[i]);
        layers[a->n_layers].gains[0] = model->final_norm;
        a->layers = (const struct step_layer *)device;
        if (!gpu->step.layers || gpu->step.layers_device != device ||
            gpu->step.layers_bytes != bytes || memcmp(gpu->step.layers, layers, bytes)) {
            gpu->base.ops->upload(&gpu->base, device, layers, bytes);
            free(gpu->step.layers);
            gpu->step.layers = layers;
            gpu->step.layers_device = device;
            gpu->step.layers_bytes = bytes;
            return;
        }
    }
    free(layers);
}

static void upload_batch(struct gpu_device *gpu, struct step_arguments *a,
                         const struct paged_batch *pages, const int32_t *token_ids) {
    size_t n = (size_t)a->n_rows, n_pages = (size_t)pages->kv_indptr[n], room = 1 << 12;
    size_t count = 3 * n + 1 + n_pages, bytes = sizeof(int32_t) * count;
    int32_t *numbers = a->numbers, *device = NULL;
    if (count > STEP_NUMBERS) {
        while (room < bytes) /* the page table grows: seldom a new allocation */
            room *= 2;
        device = (int32_t *)gpu_scratch(gpu, GPU_SCRATCH_STEP, room, "decode_step");
        numbers = (int32_t *)malloc(bytes);
        if (!numbers) {
            gpu_failed(gpu, "decode_step", "out of memory");
            return;
        }
    }
    memcpy(numbers, token_ids, sizeof *numbers * n);
    for (size_t i = 0; i < n; i++)
        numbers[n + i] = paged_batch_kv_len(pages, (int)i) - 1;
    memcpy(numbers + 2 * n, pages->kv_indptr, sizeof *numbers * (n + 1));
    memcpy(numbers + 3 * n + 1, pages->kv_page_indices, sizeof *numbers * n_pages);
    if (device)
        gpu->base.ops->upload(&gpu->base, device, numbers, bytes);
    if (numbers != a->numbers)
        free(numbers);
    a->batch = device;
}

int gpu_decode_step(struct device *dev, float *logits, /* [n_sequences, vocab_size] */
                    const struct model *model, const struct kv_layer *kv, /* host [n_layers] */
                    const struct paged_batch *pages,
                    const int32_t *token_ids, /* host [n_sequences] */
                    struct error *err) {
    struct gpu_device *gpu = gpu_of(dev);
    struct step_arguments a = arguments_of(gpu, model, pages);
    int version = gpu->version[GPU_DECODE_STEP];
    if (version == 1 || gpu->failed || !a.n_rows || !can_run(gpu, &a, pages) ||
        (!version && !pays(gpu, model, pages)))
        return 0;
    if (paged_batch_check(pages, err))
        return -1;
    for (int i = 0; i < a.n_rows; i++)
        if (!paged_batch_kv_len(pages, i))
            return 0;
    int n_blocks = choose_clusters(gpu, &a);
    if (!n_blocks)
        return 0;
    int n_clusters = (a.n_rows + a.rows_per_cluster - 1) / a.rows_per_cluster;
    a.logits = logits;
    gpu_step_pack(gpu, &a, model);
    upload_layers(gpu, &a, model, kv);
    upload_batch(gpu, &a, pages, token_ids);
    if (gpu->failed)
        return 1; /* the next sync tells why */
    step_kernel decode_step = kernel_of(a.head_dim);
    LAUNCH_CLUSTERS(decode_step, n_clusters, n_blocks, STEP_THREADS, step_sizes_of(&a).bytes,
                    gpu->stream, a);
    gpu->launches++;
    gpu_ok(gpu, cudaGetLastError(), "decode_step");
    return 1;
}
