#include "textflag.h"

// func stream(dst, src *byte, units int)
//
// SSE2 only, which every amd64 has. Four 16-byte stores fill one write-combining
// buffer; SFENCE makes them visible before what the caller stores next.
TEXT ·stream(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ units+16(FP), CX
	TESTQ CX, CX
	JZ    done

loop:
	PREFETCHT0 512(SI)
	MOVOU  (SI), X0
	MOVOU  16(SI), X1
	MOVOU  32(SI), X2
	MOVOU  48(SI), X3
	MOVNTO X0, (DI)
	MOVNTO X1, 16(DI)
	MOVNTO X2, 32(DI)
	MOVNTO X3, 48(DI)
	ADDQ   $64, SI
	ADDQ   $64, DI
	DECQ   CX
	JNZ    loop

done:
	SFENCE
	RET
