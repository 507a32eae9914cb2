module gounseen

go 1.19
