# 100,000 calls of a service that returns its argument.
    mov r6, 100000
next:
    mov r1, r6
    call 5
    add r7, r0
    add r6, -1
    jne r6, 0, next
    mov r0, r7
    exit
