LAB_8_REPLACES := gpu/attend.cu gpu/attention_paged.cu
LAB_8_DEMO     := --device emu --prompt Hello --max-new 4
LAB_8_EXTRA     = $(call emu_objects,release,11)
