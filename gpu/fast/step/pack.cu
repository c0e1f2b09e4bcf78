/* The weights of a model as decode_step takes them (step.h), packed on the device once. */
#include "gpu/fast/step/linear.h"

struct pack_source {
    const int8_t *digits[3], *exponents[3];
    int n[3]; /* rows of each; 0: there is none */
};

/* Row `row` of panel `panel`: of which matrix, and where it is there. Behind the end: the last one,
 * whose outputs are nobody's then. */
static __device__ __forceinline__ int2 row_of_panel(const struct pack_source *from,
                                                    const struct step_linear *w, int panel,
                                                    int row) {
    int part = w->gated ? row / 8 : 0, index = w->gated ? panel * 8 + row % 8 : panel * 16 + row;
    for (; !w->gated && part < 2 && index >= from->n[part] && from->n[part + 1]; part++)
        index -= from->n[part];
    return {part, min(index, from->n[part] - 1)};
}

/* A block per panel. */
__global__ static void pack_panels(unsigned char *packed, struct pack_source from,
                                   struct step_linear w) {
    run_in_turn();
    int panel = (int)blockIdx.x, padded = w.steps * 64;
    unsigned char *to = packed + (size_t)panel * (size_t)step_panel_bytes(w.steps);
    for (int i = (int)threadIdx.x; i < w.steps * 512; i += (int)blockDim.x) {
        int word = i % 4, lane = i / 4 % 32, vector = i / 128 % 4;
        int2 row = row_of_panel(&from, &w, panel, lane / 4 + word % 2 * 8);
        size_t at = (size_t)row.y * (size_t)padded +
                    (size_t)(i / 512 * 64 + lane % 4 * 16 + vector % 2 * 8 + word / 2 * 4);
        size_t low = vector / 2 ? (size_t)from.n[row.x] * (size_t)padded : 0;
        ((uint32_t *)to)[i] = *(const uint32_t *)(from.digits[row.x] + low + at);
    }
    if (threadIdx.x < 16) {
        int2 row = row_of_panel(&from, &w, panel, (int)threadIdx.x);
        packed[step_exponents_offset(&w) + (size_t)panel * 16 + threadIdx.x] =
            (unsigned char)from.exponents[row.x][row.y];
    }
}

static void pack_linear(struct gpu_device *gpu, const struct step_arguments *a, unsigned char *to,
                        enum step_kind kind, const struct matrix *const *matrices, int n) {
    struct step_linear w = step_linear_of(a, kind);
    struct pack_source from = {};
    for (int i = 0; i < n; i++) {
        from.digits[i] = (const int8_t *)matrices[i]->mantissas;
        from.exponents[i] = matrices[i]->exponents;
        from.n[i] = matrices[i]->n;
    }
    if (kind != STEP_LOGITS)
        to += step_packed_offset(a, kind);
    GPU_LAUNCH_EARLY(gpu, pack_panels, (unsigned)step_panels(&w), 128, 0, to, from, w);
}

/* Where the launch finds the weights of the first layer. */
static void set_linears(struct step_arguments *a) {
    for (int i = 0; i < N_STEP_LINEARS; i++) {
        enum step_kind kind = (enum step_kind)i;
        struct step_linear w = step_linear_of(a, kind);
        w.packed = a->packed + (kind == STEP_LOGITS ? 0 : step_packed_offset(a, kind));
        w.exponents = w.packed + step_exponents_offset(&w);
        a->linears[i] = w;
    }
}

void gpu_step_pack(struct gpu_device *gpu, struct step_arguments *a, const struct model *model) {
    struct step_linear output = step_linear_of(a, STEP_LOGITS);
    size_t bytes = (size_t)a->n_layers * a->layer_bytes + step_packed_bytes(&output);
    unsigned char *to =
        (unsigned char *)gpu_scratch(gpu, GPU_SCRATCH_PACKED, bytes, "packed weights");
    a->packed = to;
    set_linears(a);
    if (gpu->failed || (gpu->step.packed_of == model->embedding.mantissas &&
                        gpu->step.packed_at == gpu->weights_changes))
        return;
    for (int i = 0; i < a->n_layers; i++, to += a->layer_bytes) {
        const struct layer_weights *w = &model->layers[i];
        const struct matrix *const qkv[] = {&w->q, &w->k, &w->v}, *const o[] = {&w->o},
                                   *const gate_up[] = {&w->gate, &w->up},
                                   *const down[] = {&w->down};
        pack_linear(gpu, a, to, STEP_QKV, qkv, 3);
        pack_linear(gpu, a, to, STEP_O, o, 1);
        pack_linear(gpu, a, to, STEP_GATE_UP, gate_up, 2);
        pack_linear(gpu, a, to, STEP_DOWN, down, 1);
    }
    const struct matrix *const logits[] = {model->output.n ? &model->output : &model->embedding};
    pack_linear(gpu, a, to, STEP_LOGITS, logits, 1);
    gpu->step.packed_of = model->embedding.mantissas;
    gpu->step.packed_at = gpu->weights_changes;
}
