/* The kernels of attention_paged.cu for other types than bfp16, from phase 11 on: they take long to
 * compile. */
#define FOR_OTHER_TYPES
#include "gpu/attention_paged.cu"
