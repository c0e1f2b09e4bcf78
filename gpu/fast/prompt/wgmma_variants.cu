/* The kernels of wgmma.cu for variants of attention and for caches of floats, from phase 9 on: they
 * take long to compile. */
#define FOR_VARIANTS
#include "gpu/fast/prompt/wgmma.cu"
