/*
 * The op decode_step: whether its kernel (step.cu) can run a pass, and should; its clusters, its
 * arguments, its launch.
 *
 * 1  leaves the pass to the other ops
 * 2  the kernel, where it applies: compute capability 9.0, bfp16, a model that is small enough for
 *    its activations to fit in shared memory, 32, 64 or 128 dimensions a head, no sliding window
 *
 * The choice (version 0) is 2 where it pays: weights that stay in the L2 cache, few and short
 * sequences (measured: tests/bench/README.md). And 1 if a version of another op was asked for,
 * which this would leave out.
 */
#include "gpu/fast/step/linear.h"

#include <stdlib.h>

/* What it pays for (tests/bench/README.md): so many tiles of all heads of a block, one after the
 * other; and as many more sequences, with which the other ops take longer, too. */
enum { FEW_ROWS = 32, FEW_TILES = 6, MOST_ROWS = 64, MOST_TILES = 15 };

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

/* The kernel's arguments, but for where its arrays are. */
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

/* Clusters of so many rows. Returns the shared memory of a block. */
static int bytes_for(struct step_arguments *a, int rows) {
    a->rows_per_cluster = rows;
    a->at = step_sizes_of(a, rows);
    return a->at.bytes;
}

/* Whether the kernel can run the model over this cache. */
static bool can_run(const struct gpu_device *gpu, struct step_arguments *a,
                    const struct paged_batch *pages) {
    int64_t rows = (int64_t)pages->n_pages * pages->page_size * a->n_kv_heads;
    return gpu->has_wgmma && gpu_step_kernel(a->head_dim) && a->n_heads <= STEP_MOST_HEADS &&
           a->hidden <= STEP_MOST_HIDDEN && a->hidden % 4 == 0 && a->ffn % 4 == 0 &&
           step_stride(a) / 64 <= STEP_UNITS && rows < UINT32_MAX &&
           1 << a->page_bits == pages->page_size && bytes_for(a, 1) <= gpu->most_shared;
}

/* Whether it should be chosen: see above. */
static bool pays(const struct gpu_device *gpu, const struct step_arguments *a,
                 const struct model *model, const struct paged_batch *pages) {
    int longest = 0, n = pages->n_sequences;
    int heads = (a->rows_per_cluster * a->n_heads + a->n_blocks - 1) / a->n_blocks;
    for (int i = 0; i < N_GPU_KERNELS; i++)
        if (gpu->version[i])
            return false;
    for (int i = 0; i < n; i++)
        longest = max(longest, paged_batch_kv_len(pages, i));
    int tiles = (longest + ATTENTION_TILE - 1) / ATTENTION_TILE * heads;
    return weight_bytes(model) <= (size_t)gpu->cache_bytes && n <= MOST_ROWS &&
           tiles <= (n <= FEW_ROWS ? FEW_TILES : MOST_TILES);
}

/* Every block of a cluster has a part in every layer: so nobody can be two stages ahead of another,
 * whose memory would still be in use. */
static int most_blocks(const struct step_arguments *a) {
    int least = MOST_CLUSTER_BLOCKS;
    for (int kind = STEP_QKV; kind < STEP_LOGITS; kind++) {
        struct step_linear w = step_linear_of(a, (enum step_kind)kind);
        least = min(least, step_panels(&w));
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
                    cluster_prepare(gpu_step_kernel(head_dim), &gpu->step.clusters[i].n_blocks,
                                    STEP_THREADS, bytes, &gpu->step.clusters[i].at_once),
                    "decode_step's clusters"))
            return false;
    }
    gpu->step.head_dim = head_dim;
    gpu->step.bytes = bytes;
    return true;
}

/* Clusters of how many blocks, and how many rows each: of many blocks, if the GPU runs as many of
 * them at once as that takes. Returns false where the kernel does not run, or the device has
 * failed. */
static bool choose_clusters(struct gpu_device *gpu, struct step_arguments *a) {
    int most_rows = STEP_ROWS, capacity = 0;
    while (bytes_for(a, most_rows) > gpu->most_shared)
        most_rows--;
    if (!count_clusters(gpu, a->head_dim, bytes_for(a, most_rows)))
        return false;
    for (int i = 0; i < N_CLUSTER_SIZES && capacity < a->n_rows; i++) {
        int blocks = gpu->step.clusters[i].n_blocks, at_once = gpu->step.clusters[i].at_once;
        if (blocks > most_blocks(a) || at_once * most_rows <= capacity)
            continue;
        capacity = at_once * most_rows;
        a->n_blocks = blocks;
        for (a->block_bits = 0; 1 << a->block_bits < blocks; a->block_bits++)
            ;
        bytes_for(a, min(most_rows, (a->n_rows + at_once - 1) / at_once));
    }
    return a->n_blocks > 0;
}

/* ---- the op --------------------------------------------------------------------------------- */

/* Copies the layers to the device, unless they are there from the pass before. */
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
    if (device)
        free(numbers);
    a->batch = device;
    a->n_numbers = device ? 0 : (int)count;
}

int gpu_decode_step(struct device *dev, float *logits, /* [n_sequences, vocab_size] */
                    const struct model *model, const struct kv_layer *kv, /* host [n_layers] */
                    const struct paged_batch *pages,
                    const int32_t *token_ids, /* host [n_sequences] */
                    struct error *err) {
    struct gpu_device *gpu = gpu_of(dev);
    struct step_arguments a = arguments_of(gpu, model, pages);
    int version = gpu->version[GPU_DECODE_STEP];
    if (version == 1 || gpu->failed || !a.n_rows || model->config.window ||
        !can_run(gpu, &a, pages))
        return 0;
    if (paged_batch_check(pages, err))
        return -1;
    for (int i = 0; i < a.n_rows; i++)
        if (!paged_batch_kv_len(pages, i))
            return 0;
    if (!choose_clusters(gpu, &a) || (!version && !pays(gpu, &a, model, pages)))
        return 0;
    int n_clusters = (a.n_rows + a.rows_per_cluster - 1) / a.rows_per_cluster;
    a.logits = logits;
    gpu_step_pack(gpu, &a, model);
    upload_layers(gpu, &a, model, kv);
    upload_batch(gpu, &a, pages, token_ids);
    if (gpu->failed)
        return 1; /* the next sync tells why */
    step_kernel decode_step = gpu_step_kernel(a.head_dim);
    LAUNCH_CLUSTERS(decode_step, n_clusters, a.n_blocks, STEP_THREADS, a.at.bytes, gpu->stream, a);
    gpu->launches++;
    gpu_ok(gpu, cudaGetLastError(), "decode_step");
    return 1;
}
