# The kernels in the emulation, without those for tensor cores and whole steps, which take longest to
# compile: the engine can do without them, and a learner's kernel must. The project's own calls one.
LAB_8_KERNELS  := $(filter-out gpu/fast/step/% %/decode_floats.cu %/decode.cu %/mma.cu %/wgmma.cu %_variants.cu \
                    %_types.cu,$(CUDA_11)) \
                  $(if $(filter gpu/attend.cu,$(LEARNER)),$(addprefix gpu/fast/decode/,decode.cu decode_variants.cu))
LAB_8_EXTRA     = $(LAB_8_KERNELS:%.cu=build/release/%.cu.o) $(EMU_SOURCES:%.cpp=build/release/%.o)
LAB_8_REPLACES := gpu/attend.cu gpu/attention_paged.cu
LAB_8_DEMO     := --device emu --prompt Hello --max-new 3
LAB_8_REFUSED  := _Z[0-9]*gpu_(attention|kv_gather|merge_states).* ref_.*
LAB_8_INLINES  := tile_memory run_tile tile_value
LAB_8_SPEED    := tests/labs/08/speed.cu
