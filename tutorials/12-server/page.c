/* page.html in the program, as it is. The directive is the assembler's: C11 has none. */
__asm__(".section .rodata\n"
        ".global server_page, server_page_end\n"
        "server_page: .incbin \"tutorials/12-server/page.html\"\n"
        "server_page_end: .byte 0\n"
        ".previous\n");

/* A translation unit has at least one declaration. */
extern const char server_page[];
