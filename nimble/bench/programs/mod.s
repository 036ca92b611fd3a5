# Sum of i*i mod 97 for i from 1,000,000 down to 1.
    mov r1, 1000000
next:
    mov r3, r1
    mul r3, r1
    mod r3, 97
    add r0, r3
    add r1, -1
    jne r1, 0, next
    exit
