# A million rounds of arithmetic without division or memory.
    mov r1, 1000000
next:
    add r0, 3
    xor r0, r1
    lsh r0, 1
    add r0, r1
    add r1, -1
    jne r1, 0, next
    exit
