# The index of the largest of four 32-bit numbers at r1.
    ldxw r2, [r1]
    mov r0, 0
    ldxw r3, [r1+4]
    jle r3, r2, third
    mov r2, r3
    mov r0, 1
third:
    ldxw r3, [r1+8]
    jle r3, r2, fourth
    mov r2, r3
    mov r0, 2
fourth:
    ldxw r3, [r1+12]
    jle r3, r2, done
    mov r0, 3
done:
    exit
