# How many primes there are up to 10,000, by trial division.
    mov r1, 2
number:
    mov r2, 2
divisor:
    mov r3, r2
    mul r3, r2
    jgt r3, r1, prime
    mov r3, r1
    mod r3, r2
    jeq r3, 0, composite
    add r2, 1
    ja divisor
prime:
    add r0, 1
composite:
    add r1, 1
    jle r1, 10000, number
    exit
