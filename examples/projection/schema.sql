create schema crm;
create table crm.contact (id bigint primary key, email text not null);
