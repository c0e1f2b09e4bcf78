#include "model/context_parallel.h"
#include "model/forward.h"

int batch_fault(const struct model *model, const struct batch *batch, struct fault fault,
                struct error *err) {
    int layer = fault.site / N_TENSORS, n_layers = model->config.n_layers;
    enum tensor_id id = (enum tensor_id)(fault.site % N_TENSORS);
    if (id == TENSOR_ATTENTION && context_is_shared(model)) /* of a row and a tile */
        return error_set(err, "layer %d of %d, %s: a NaN, an infinity or a value too large", layer,
                         n_layers, tensor_name(id));
    int row = layer == n_layers ? batch->logit_rows[fault.token] : fault.token;
    int sequence = 0;
    while (batch->qo_indptr[sequence + 1] <= row)
        sequence++;
    return error_set(
        err,
        "layer %d of %d, %s, sequence %d, position %d: a NaN, an infinity or a value too "
        "large appeared. Are the weights those of this config?",
        layer, n_layers, tensor_name(id), sequence, batch->positions[row]);
}
