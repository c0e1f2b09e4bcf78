/* The weights of a model as decode_step takes them (step.h), packed on the device once. */
#include "gpu/fast/step/linear.h"

struct pack_source {
    const int8_t *digits[3], *exponents[3];
    const float *biases[3];
    int n[3]; /* rows of each; 0: there is none */
};

/* Row `row` of panel `panel`: of which matrix, and where it is there. Behind the end: the last one,
 * whose outputs are nobody's then. */
static __device__ __forceinline__ int2 row_of_panel(const struct pack_source *from,
                                                    const struct step_linear *w, int panel,
                                                    int row) {
    int part = w->gated ? panel % 2 : 0, index = (w->gated ? panel / 2 : panel) * 8 + row;
    for (; !w->gated && part < 2 && index >= from->n[part] && from->n[part + 1]; part++)
        index -= from->n[part];
    return {part, min(index, from->n[part] - 1)};
}

/* A block per panel. */
__global__ static void pack_panels(unsigned char *packed, struct pack_source from,
                                   struct step_linear w) {
    run_in_turn();
    int panel = (int)blockIdx.x, padded = w.steps * 64;
    unsigned char *to = packed + (size_t)panel * (size_t)w.steps * STEP_UNIT_BYTES;
    for (int i = (int)threadIdx.x; i < w.steps * 64; i += (int)blockDim.x) {
        int lane = i % 32, is_low = i / 32 % 2;
        int2 row = row_of_panel(&from, &w, panel, lane / 4);
        size_t at = (size_t)row.y * (size_t)padded + (size_t)(i / 64 * 64 + lane % 4 * 16);
        size_t low = is_low ? (size_t)from.n[row.x] * (size_t)padded : 0;
        ((uint4 *)to)[i] = *(const uint4 *)(from.digits[row.x] + low + at);
    }
    if (threadIdx.x < 8) {
        int2 row = row_of_panel(&from, &w, panel, (int)threadIdx.x);
        const float *biases = from.biases[row.x];
        struct step_tail *tail = (struct step_tail *)(packed + step_tails_offset(&w)) + panel;
        tail->exponents[threadIdx.x] = from.exponents[row.x][row.y];
        tail->biases[threadIdx.x] = biases ? biases[row.y] : -0.0f;
    }
}

static void pack_linear(struct gpu_device *gpu, const struct step_arguments *a, unsigned char *to,
                        enum step_kind kind, const struct matrix *const *matrices,
                        const float *const *biases, int n) {
    struct step_linear w = step_linear_of(a, kind);
    struct pack_source from = {};
    for (int i = 0; i < n; i++) {
        from.digits[i] = (const int8_t *)matrices[i]->mantissas;
        from.exponents[i] = matrices[i]->exponents;
        from.biases[i] = biases ? biases[i] : NULL;
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
        a->linears[i].packed = a->packed + (kind == STEP_LOGITS ? 0 : step_packed_offset(a, kind));
    }
}

bool gpu_step_is_packed(const struct gpu_device *gpu, const struct model *model) {
    return gpu->step.packed_of == model->embedding.mantissas &&
           gpu->step.packed_at == gpu->weights_changes;
}

void gpu_step_pack(struct gpu_device *gpu, struct step_arguments *a, const struct model *model) {
    struct step_linear output = step_linear_of(a, STEP_LOGITS);
    size_t bytes = (size_t)a->n_layers * a->layer_bytes + step_packed_bytes(&output);
    unsigned char *to =
        (unsigned char *)gpu_scratch(gpu, GPU_SCRATCH_PACKED, bytes, "packed weights");
    a->packed = to;
    set_linears(a);
    if (gpu->failed || gpu_step_is_packed(gpu, model))
        return;
    for (int i = 0; i < a->n_layers; i++, to += a->layer_bytes) {
        const struct layer_weights *w = &model->layers[i];
        const struct matrix *const qkv[] = {&w->q, &w->k, &w->v}, *const o[] = {&w->o},
                                   *const gate_up[] = {&w->gate, &w->up},
                                   *const down[] = {&w->down};
        const float *const qkv_biases[] = {w->q_bias, w->k_bias, w->v_bias};
        const float *const gate_up_biases[] = {w->gate_bias, w->up_bias};
        pack_linear(gpu, a, to, STEP_QKV, qkv, qkv_biases, 3);
        pack_linear(gpu, a, to, STEP_O, o, &w->o_bias, 1);
        pack_linear(gpu, a, to, STEP_GATE_UP, gate_up, gate_up_biases, 2);
        pack_linear(gpu, a, to, STEP_DOWN, down, &w->down_bias, 1);
    }
    const struct matrix *const logits[] = {model->output.n ? &model->output : &model->embedding};
    pack_linear(gpu, a, to, STEP_LOGITS, logits, NULL, 1);
    gpu->step.packed_of = model->embedding.mantissas;
    gpu->step.packed_at = gpu->weights_changes;
}
