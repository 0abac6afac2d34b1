/* .note.android.ident: API level 30, NDK r26c, build 11394342. */
    .section .note.android.ident, "a", %note
    .balign 4
    .long 8, 132, 1
    .asciz "Android"
    .long 30
    .asciz "r26c"
    .zero 59
    .asciz "11394342"
    .zero 55
