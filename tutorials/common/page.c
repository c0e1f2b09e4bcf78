/* page.html in the program, as it is. The directive is the assembler's: C11 has none. */
#include "tutorials/common/page.h"

__asm__(".section .rodata\n"
        ".global page_text, page_end\n"
        "page_text: .incbin \"tutorials/common/page.html\"\n"
        "page_end: .byte 0\n"
        ".previous\n");
