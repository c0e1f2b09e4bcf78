/*
 * The op decode_step: whether its kernel (step.cu) can run a pass, and should; its groups of
 * blocks, its arguments, its launch.
 *
 * 1  leaves the pass to the other ops
 * 2  the kernel, where it applies: compute capability 9.0, bfp16, a model whose rows fit in
 *    registers and shared memory (hidden_size up to 4,096, other rows up to 14,336 numbers), 32, 64
 *    or 128 dimensions a head, no sliding window
 *
 * The choice (version 0) is 2 where it pays: few and short sequences (measured:
 * tests/bench/README.md). And 1 if a version of another op was asked for, which this would leave
 * out.
 */
#include "gpu/fast/step/linear.h"

#include <stdlib.h>

/* What it pays for (tests/bench/README.md): so many sequences, and so many tiles of all heads of a
 * block, one after the other; where weights stay in the L2 cache, and where they come from memory.
 * Of the latter so many bytes, as they are there once more for this kernel, and only with the
 * kernel for short rows: the other has too few registers for its own. */
enum { CACHED_ROWS = 64, CACHED_TILES = 3, READ_ROWS = 2, READ_TILES = 1 };
static const size_t MOST_READ = (size_t)4 << 30;

static const int64_t MOST_EXCHANGED = 1 << 28; /* floats that all layers hand over */

static struct step_layer layer_of(const struct layer_weights *w, const struct kv_layer *kv) {
    return {{w->attention_norm, w->ffn_norm, w->q_norm, w->k_norm}, *kv};
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
    a.layer_floats = 2 * (a.n_heads + a.n_kv_heads) * a.head_dim + 2 * a.hidden + a.ffn;
    for (int i = 0; i < N_STEP_LINEARS; i++)
        a.linears[i] = step_linear_of(&a, (enum step_kind)i);
    a.reads_once = weight_bytes(model) > (size_t)gpu->cache_bytes;
    a.layer_bytes = step_packed_offset(&a, STEP_LOGITS);
    return a;
}

/* The shared memory of groups of a->rows_per_group rows, with so many stages in the ring. Returns
 * whether there is so much, and room for a panel of each linear layer. */
static bool fits_with(const struct gpu_device *gpu, struct step_arguments *a, int stages) {
    struct step_sizes z;
    int rows = a->rows_per_group, most = 0, most_panels = 0, most_portions = 0;
    bool fits = true;
    for (int i = 0; i < N_STEP_LINEARS; i++) {
        struct step_linear *w = &a->linears[i];
        /* A portion ends with a chunk; of the output matrix half of the ring is on its way. */
        w->room = (i == STEP_LOGITS ? stages / 2 : stages) * STEP_WARPS / w->steps;
        w->room = min(min(w->room, (int)STEP_MOST_PANELS), STEP_THREADS / (8 * rows));
        w->room &= w->gated ? ~1 : ~0;
        most = max(most, w->room * w->entries);
        most_panels = max(most_panels, w->room);
        int panels = ((step_panels(w) >> w->gated) + a->n_blocks - 1) / a->n_blocks << w->gated;
        most_portions =
            max(most_portions, (min(panels, w->room) * w->steps + STEP_WARPS - 1) / STEP_WARPS);
        fits = fits && w->room > 0;
    }
    z.stride = step_stride(a);
    z.layers = (int)sizeof(struct step_shared);
    z.partial = z.layers + (a->n_layers + 1) * (int)sizeof(struct step_layer);
    z.digits = z.partial + most * rows * 64;
    z.ring = (z.digits + rows * z.stride + 127) / 128 * 128;
    z.ring_bytes = STEP_WARPS * STEP_UNIT_BYTES + most_panels * (int)sizeof(struct step_tail);
    z.ring_bytes = (z.ring_bytes + 127) / 128 * 128;
    z.bytes = z.ring + stages * z.ring_bytes;
    a->at = z;
    a->stages = stages;
    a->spare = stages - most_portions;
    return fits && z.bytes <= gpu->most_shared;
}

/* The kernel for groups of so many rows, with as many stages as there is memory for. NULL: a block
 * has no room for them. */
static step_kernel kernel_for(const struct gpu_device *gpu, struct step_arguments *a, int rows) {
    int parts = STEP_WARPS, vectors[2] = {}, stages = STEP_MOST_STAGES;
    for (int i = 1; i < rows; i *= 2)
        parts /= 2;
    for (int i = 0; i < N_STEP_LINEARS; i++) {
        int *most = &vectors[a->linears[i].norm];
        *most = max(*most, (a->linears[i].columns / 4 + parts * 32 - 1) / (parts * 32));
    }
    a->rows_per_group = rows;
    a->n_blocks = exchange_blocks(gpu->n_processors / ((a->n_rows + rows - 1) / rows));
    while (a->n_blocks && stages > 1 && !fits_with(gpu, a, stages))
        stages--;
    return a->n_blocks && stages > 1 ? gpu_step_kernel(a->head_dim, vectors[1], vectors[0]) : NULL;
}

/* Whether the kernel can run the model over this cache. */
static bool can_run(const struct gpu_device *gpu, const struct step_arguments *a,
                    const struct paged_batch *pages) {
    int64_t rows = (int64_t)pages->n_pages * pages->page_size * a->n_kv_heads;
    for (int i = 0; i < N_STEP_LINEARS; i++)
        if (step_packed_bytes(&a->linears[i]) > INT32_MAX)
            return false;
    return gpu->has_wgmma && a->n_heads <= STEP_MOST_HEADS && a->hidden % 4 == 0 &&
           a->ffn % 4 == 0 && rows < UINT32_MAX && 1 << a->page_bits == pages->page_size;
}

/* Whether the weights are packed, or there is room for it that others will not miss. */
static bool has_room(struct gpu_device *gpu, const struct model *model) {
    return gpu_step_is_packed(gpu, model) || gpu_available(&gpu->base) / 2 > weight_bytes(model);
}

/* Whether it may be chosen: see above. This much is known before its blocks are. */
static bool may_pay(const struct gpu_device *gpu, const struct step_arguments *a,
                    const struct model *model) {
    for (int i = 0; i < N_GPU_KERNELS; i++)
        if (gpu->version[i])
            return false;
    return a->n_rows <= (a->reads_once ? READ_ROWS : CACHED_ROWS) &&
           weight_bytes(model) <= MOST_READ;
}

/* And whether it is. */
static bool pays(struct gpu_device *gpu, const struct step_arguments *a, const struct model *model,
                 step_kernel kernel) {
    int heads = (a->rows_per_group * a->n_heads + a->n_blocks - 1) / a->n_blocks;
    int tiles = (a->n_tiles + a->n_splits - 1) / a->n_splits * heads;
    if (a->reads_once && kernel != gpu_step_kernel(a->head_dim, 1, 1))
        return false;
    return tiles <= (a->reads_once ? READ_TILES : CACHED_TILES) && has_room(gpu, model);
}

/* How many blocks share a head: as there are, but none without a tile of the longest sequence. */
static void choose_splits(struct step_arguments *a, const struct paged_batch *pages) {
    int longest = 0;
    for (int i = 0; i < a->n_rows; i++)
        longest = max(longest, paged_batch_kv_len(pages, i));
    a->n_tiles = (longest + ATTENTION_TILE - 1) / ATTENTION_TILE;
    a->n_splits =
        max(1, min(a->n_tiles, exchange_shares(a->n_blocks / (a->rows_per_group * a->n_heads))));
    a->splits_inverse = step_inverse(a->n_splits);
    a->tiles_at = a->layer_floats;
    if (a->n_tiles > 1)
        a->layer_floats += (a->n_heads * a->n_tiles * (a->head_dim + STEP_TILE_MORE) + 3) / 4 * 4;
}

/* Groups of as many rows as a block takes, which have all processors. NULL: there are too few, or
 * too much would be handed over. */
static step_kernel choose_groups(const struct gpu_device *gpu, struct step_arguments *a,
                                 const struct paged_batch *pages) {
    step_kernel kernel;
    int rows = min(a->n_rows, (int)STEP_ROWS);
    while (!(kernel = kernel_for(gpu, a, rows)))
        if (!--rows)
            return NULL;
    choose_splits(a, pages);
    int64_t floats = (int64_t)(a->n_layers + 1) * a->layer_floats * a->n_rows;
    return floats <= MOST_EXCHANGED ? kernel : NULL;
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
    if (device) {
        gpu->base.ops->upload(&gpu->base, device, numbers, bytes);
        free(numbers);
    }
    a->batch = device;
    a->n_numbers = device ? 0 : (int)count;
}

/* The exchange of this launch, all of which is absent, and the other one, that it clears for the
 * next. */
static void swap_exchanges(struct gpu_device *gpu, struct step_arguments *a) {
    size_t layers = (size_t)a->n_layers + 1, keys = 2 * (size_t)a->n_blocks;
    size_t floats = (layers * (size_t)a->layer_floats + keys) * (size_t)a->n_rows;
    floats = (floats + 31) / 32 * 32; /* the other one begins with a line of the cache, too */
    size_t half = max(floats * sizeof(float), gpu->step.exchange_bytes);
    char *x = (char *)gpu_scratch(gpu, GPU_SCRATCH_EXCHANGE, 2 * half, "decode_step's exchange");
    if (gpu->failed)
        return;
    if (x != gpu->step.exchange || half > gpu->step.exchange_bytes)
        gpu_ok(gpu, cudaMemsetAsync(x, 0xff, 2 * half, gpu->stream), "clearing the exchange");
    gpu->step.exchange = x;
    gpu->step.exchange_bytes = half;
    gpu->step.odd = !gpu->step.odd;
    a->exchange = (float *)(x + (gpu->step.odd ? half : 0));
    a->next = (float *)(x + (gpu->step.odd ? 0 : half));
    a->next_vectors = (int)(gpu->step.used / 16);
    gpu->step.used = floats * sizeof(float);
}

int gpu_decode_step(struct device *dev, float *logits, /* [n_sequences, vocab_size] */
                    int32_t *drawn,                    /* [n_sequences] */
                    const struct model *model, const struct kv_layer *kv, /* host [n_layers] */
                    const struct paged_batch *pages,
                    const int32_t *token_ids, /* host [n_sequences] */
                    struct error *err) {
    struct gpu_device *gpu = gpu_of(dev);
    struct step_arguments a = arguments_of(gpu, model, pages);
    int version = gpu->version[GPU_DECODE_STEP];
    if (version == 1 || gpu->failed || !a.n_rows || model->config.window ||
        !can_run(gpu, &a, pages) || (!version && !may_pay(gpu, &a, model)))
        return 0;
    if (paged_batch_check(pages, err))
        return -1;
    for (int i = 0; i < a.n_rows; i++)
        if (!paged_batch_kv_len(pages, i))
            return 0;
    step_kernel kernel = choose_groups(gpu, &a, pages);
    if (!kernel || (!version && !pays(gpu, &a, model, kernel)))
        return 0;
    int n_groups = (a.n_rows + a.rows_per_group - 1) / a.rows_per_group;
    a.logits = logits;
    a.drawn = drawn;
    gpu_step_pack(gpu, &a, model);
    swap_exchanges(gpu, &a);
    upload_layers(gpu, &a, model, kv);
    upload_batch(gpu, &a, pages, token_ids);
    if (gpu->failed)
        return 1; /* the next sync tells why */
    /* Once and for any size: it takes longer than all that is done before it for a step. */
    if (gpu->step.kernel != (const void *)kernel)
        gpu_ok(gpu,
               cudaFuncSetAttribute((const void *)kernel,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, gpu->most_shared),
               "decode_step's shared memory");
    gpu->step.kernel = (const void *)kernel;
    LAUNCH_TOGETHER(kernel, n_groups * a.n_blocks, STEP_THREADS, a.at.bytes, gpu->stream, a);
    gpu->launches++;
    gpu_ok(gpu, cudaGetLastError(), "decode_step");
    return 1;
}
